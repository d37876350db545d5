"""Former names: what they are, and the line at which they warn."""

import subprocess
import sys
import warnings
from types import ModuleType

import pytest

import xbridge
from xbridge import errors
from xbridge._deprecation import RENAMED


@pytest.mark.parametrize("module", [xbridge, errors], ids=lambda module: module.__name__)
@pytest.mark.parametrize("name", RENAMED)
def test_find_renamed__former_name_is_new_one(module: ModuleType, name: str) -> None:
    """A former name gives the object of the new one, warns at the caller's line and is not in `__all__`."""
    instead, removed_in = RENAMED[name]
    for _ in range(2):
        with pytest.warns(xbridge.XBridgeDeprecationWarning) as caught:
            found = getattr(module, name)
        assert found is vars(module)[instead]
        assert [warning.filename for warning in caught] == [__file__]
        assert f"use {module.__name__}.{instead}" in str(caught[0].message)
        assert f"removed in xbridge {removed_in}" in str(caught[0].message)
    assert name not in module.__all__


def test_find_renamed__unknown_name_is_attribute_error() -> None:
    """A name that never existed raises the usual `AttributeError`."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for module in (xbridge, errors):
            with pytest.raises(AttributeError, match="has no attribute 'never_was'"):
                module.never_was  # noqa: B018 -- the access is the test


def test_find_renamed__testing_needs_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit is no attribute before it is imported, and the error says how."""
    with monkeypatch.context() as patch:
        patch.delattr(xbridge, "testing", raising=False)
        with pytest.raises(AttributeError, match=r"'testing'; try import xbridge\.testing$"):
            vars(xbridge)["__getattr__"]("testing")


def test_deprecation_warning__shown_in_main() -> None:
    """Python shows the warning by default for code in `__main__`."""
    program = "from xbridge import CrossingWarning"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "XBridgeDeprecationWarning: xbridge.CrossingWarning is deprecated" in run.stderr
