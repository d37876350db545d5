"""Errors as objects: their classes, what they inherit, how they travel, and what they leave behind."""

from __future__ import annotations

import array
import copy as copies
import enum
import io
import pickle
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from toylib import Toy, make_backend

import xbridge
from xbridge import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], object]

pytestmark = pytest.mark.usefixtures("own_registry")


A = np.arange(3.0)


BUILT_IN = {
    "UnknownBackendError": LookupError,
    "MissingLibraryError": ImportError,
    "UnsupportedArrayError": TypeError,
    "DTypeError": TypeError,
    "DeviceError": ValueError,
    "CopyError": ValueError,
    "CallError": TypeError,
    "OptionError": ValueError,
    "ValueLossError": OverflowError,
    "GradientError": RuntimeError,
    "PolicyError": RuntimeError,
}
WARNINGS = {"CastWarning", "CopyWarning", "PolicyWarning", "DetachWarning", "TransferWarning"}


class Pair(NamedTuple):
    """No array, and no list either."""

    a: int
    b: int


class Plain:
    """No array, but it holds one."""

    def __init__(self) -> None:
        self.weight = np.ones(2)


class Kind(enum.Enum):
    """Whose members cannot be listed, though the class can."""

    ONE = 1


@pytest.mark.parametrize(
    ("x", "hint"),
    [
        (Fraction(1, 2), "asarray(float(x), backend='numpy')"),
        (Path("a.npy"), "numpy.load(x)"),
        (Path("a.png"), ""),
        (io.BytesIO(b"ab"), ""),
        (Future[Any](), "x.result()"),
        (Pair(1, 2), "xbridge.tree.to_backend(x, 'numpy')"),
        (Plain(), ""),
        (Kind.ONE, ""),
        (type("Model", (), {"state_dict": None})(), "xbridge.tree.to_backend(x.state_dict(), 'numpy')"),
        (type("Matrix", (), {"toarray": None})(), "x.toarray()"),
        (type("Promise", (), {"compute": None})(), "x.compute()"),
        (type("LazyFrame", (), {"collect": None, "__getitem__": None})(), "x.collect()"),
        (type("Scalar", (), {"as_py": None})(), "asarray(x.as_py(), backend='numpy')"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_unsupportedarrayerror__hint_depends_on_the_type(x: object, hint: str) -> None:
    """The hint for an object that is not an array is specific to its type."""
    with pytest.raises(xbridge.UnsupportedArrayError) as caught:
        xbridge.to_numpy(x)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: xbridge.to_backend({"a": A}, "toylib"), "xbridge.tree.to_backend(x, 'toylib')"),
        (
            lambda: xbridge.to_backend(np.array([A, A[:2]], object), "toylib"),
            "xbridge.tree.to_backend(x.tolist(), 'toylib')",
        ),
        (
            lambda: xbridge.asarray([[1], [2, 3]], backend="toylib"),
            "rows of one length, or [asarray(row, backend='toylib') for row in x] for a list of arrays",
        ),
        (
            lambda: xbridge.asarray([{"a": 1}], backend="toylib"),
            "xbridge.tree.to_backend(x, 'toylib', scalars=True)",
        ),
        (lambda: xbridge.asarray([{"a": 1}]), "xbridge.tree.to_backend(x, 'numpy', scalars=True)"),
    ],
    ids=["dict", "objects", "rows", "list of dicts", "no target"],
)
def test_hint__has_the_target_of_the_call(call: Call, hint: str) -> None:
    """A hint that converts in another way converts to the target of the failed call."""
    xbridge.register_backend("toylib", make_backend())
    with pytest.raises(xbridge.XBridgeError) as caught:
        call()
    assert caught.value.hint == hint


def test_errors__subclass_a_builtin_exception() -> None:
    """Every error is exported and derives from the built-in exception a caller would expect."""
    assert set(errors.__all__) == {"XBridgeError", "XBridgeDeprecationWarning", *BUILT_IN} | WARNINGS
    for name, built_in in BUILT_IN.items():
        error = getattr(xbridge, name)
        assert issubclass(error, xbridge.XBridgeError)
        assert issubclass(error, built_in)
        assert name in xbridge.__all__
    for name in WARNINGS:
        assert issubclass(getattr(xbridge, name), xbridge.PolicyWarning)
    assert issubclass(xbridge.PolicyWarning, UserWarning)
    assert issubclass(xbridge.XBridgeDeprecationWarning, DeprecationWarning)  # shown where that is


def test_errors__can_be_pickled() -> None:
    """An error keeps its class and message through pickling."""
    with pytest.raises(xbridge.CopyError) as caught:
        xbridge.to_numpy(A, dtype="int8", copy=False)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (xbridge.CopyError, str(caught.value))


def test_errors__leave_arguments_unchanged() -> None:
    """A call that raises leaves its arguments unmodified and holds none of their buffers."""
    xbridge.register_backend("toylib", make_backend())
    numbers = array.array("d", [1.0, 2.0])
    toy = Toy(np.ones(3))
    before = copies.deepcopy((numbers, toy.data))
    with pytest.raises(xbridge.UnsupportedArrayError):
        xbridge.align(numbers, toy, {})
    assert numbers == before[0]
    assert toy.data.tolist() == before[1].tolist()
    numbers.append(3.0)
