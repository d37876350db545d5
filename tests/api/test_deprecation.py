"""Names that do not exist, and the class of warnings for those that are deprecated."""

import warnings

import pytest

import xbridge
from xbridge import errors


def test_missing_name__is_attribute_error() -> None:
    """A name that never existed raises the usual `AttributeError`."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for module in (xbridge, errors):
            with pytest.raises(AttributeError, match="has no attribute 'never_was'"):
                module.never_was  # noqa: B018 -- the access is the test


def test_missing_name__testing_needs_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit is no attribute before it is imported, and the error says how."""
    with monkeypatch.context() as patch:
        patch.delattr(xbridge, "testing", raising=False)
        with pytest.raises(AttributeError, match=r"'testing'; try import xbridge\.testing$"):
            vars(xbridge)["__getattr__"]("testing")


def test_deprecation_warning__is_pythons_own() -> None:
    """Python and pytest show it where they show a `DeprecationWarning`."""
    assert issubclass(xbridge.XBridgeDeprecationWarning, DeprecationWarning)
