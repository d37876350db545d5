"""Errors as objects: their classes, what they inherit, how they travel, and what they leave behind."""

from __future__ import annotations

import array
import copy as copies
import gc
import pickle
import sys
import traceback
import weakref
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import MOST, cached, get_backend, refusals
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


HINTS: dict[str, str] = {
    "to_backend({'a': A}, 'toylib')": "xbridge.tree.to_backend(x, 'toylib')",
    "to_backend(np.array([A, A[:2]], object), 'toylib')": "xbridge.tree.to_backend(x.tolist(), 'toylib')",
    "asarray([[1], [2, 3]], backend='toylib')": (
        "[asarray(row, backend='toylib') for row in x] for a list of arrays"
    ),
    "asarray([{'a': 1}], backend='toylib')": "xbridge.tree.to_backend(x, 'toylib', scalars=True)",
    "asarray([{'a': 1}])": "xbridge.tree.to_backend(x, 'numpy', scalars=True)",
}


@pytest.mark.parametrize(("call", "hint"), HINTS.items(), ids=HINTS)
def test_hint__has_the_target_of_the_call(call: str, hint: str) -> None:
    """A hint that converts in another way converts to the target of the failed call."""
    xbridge.register_backend("toylib", make_backend())
    with pytest.raises(xbridge.XBridgeError) as caught:
        eval(f"xbridge.{call}")
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


def test_errors__show_a_long_value_by_its_type() -> None:
    """A message stays a message, whatever a wrong value would print."""
    with pytest.raises(xbridge.OptionError, match="a list") as caught:
        xbridge.to_numpy(A, copy=[0] * 1000)  # type: ignore[arg-type] # the mistake
    assert len(str(caught.value)) < 200


def test_errors__leave_arguments_unchanged() -> None:
    """A call that raises leaves its arguments unmodified and holds none of their buffers."""
    xbridge.register_backend("toylib", make_backend())
    numbers = array.array("d", [1.0, 2.0])
    toy = Toy(np.ones(3))
    before = copies.deepcopy((numbers, toy.data))
    with pytest.raises(xbridge.UnsupportedArrayError):
        xbridge.align(numbers, toy, object())
    assert numbers == before[0]
    assert toy.data.tolist() == before[1].tolist()
    numbers.append(3.0)


@pytest.mark.parametrize("call", [xbridge.to_numpy, xbridge.backend_of, xbridge.device_of])
@pytest.mark.parametrize("x", [timedelta(days=1), object(), None, 2.5, SimpleNamespace(a=1)])
def test_refusal__says_the_same_each_time(call: Callable[[object], object], x: object) -> None:
    """What is no array is refused again by its type, in the words and with the frames of the first time."""
    told = []
    for _ in range(3):
        with pytest.raises(xbridge.UnsupportedArrayError) as caught:
            call(x)
        error = caught.value
        said = (str(error), error.hint, error.index, repr(error.__cause__))
        told.append((*said, len(traceback.extract_tb(caught.tb))))
    assert len(set(told)) == 1


def make_global_class(patch: pytest.MonkeyPatch, name: str) -> Any:
    """A class that this module keeps, whose refusals are cached."""
    cls = type(name, (), {"__module__": __name__})
    patch.setattr(sys.modules[__name__], name, cls, raising=False)
    return cls


def test_refusal__ends_when_the_class_gets_a_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that was refused is converted once it, or its class, exports an array."""
    kind = make_global_class(monkeypatch, "Kind")
    x, y = kind(), kind()
    for one in (x, y, x):
        with pytest.raises(xbridge.UnsupportedArrayError):
            xbridge.to_numpy(one)
    x.__array__ = lambda *_, **__: np.arange(1)
    assert xbridge.to_numpy(x).tolist() == [0]
    with pytest.raises(xbridge.UnsupportedArrayError):
        xbridge.to_numpy(y)
    kind.__array__ = lambda *_, **__: np.arange(2)
    assert xbridge.to_numpy(y).tolist() == [0, 1]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="a class in Python cannot be a buffer")
def test_refusal__ends_when_the_class_gets_a_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that was refused is converted once its class exports a buffer."""
    kind = make_global_class(monkeypatch, "Kind")
    for _ in range(2):
        with pytest.raises(xbridge.UnsupportedArrayError):
            xbridge.to_numpy(kind())
    kind.__buffer__ = lambda *_: memoryview(array.array("d", [1.0]))
    assert xbridge.to_numpy(kind()).tolist() == [1.0]


@pytest.mark.parametrize("call", [xbridge.to_numpy, xbridge.backend_of])
def test_refusal__keeps_no_class_alive(call: Callable[[object], object]) -> None:
    """A class of a function is freed with all that it holds, although its objects were refused."""
    pytest.importorskip("torch")
    xbridge.to_torch(A)  # calls are cached once backends are loaded
    cls = type("Local", (), {})
    held = weakref.ref(cls)
    for _ in range(2):
        with pytest.raises(xbridge.UnsupportedArrayError):
            call(cls())
    del cls
    gc.collect()
    assert held() is None


def test_refusal__of_one_array_is_not_that_of_others() -> None:
    """An array that its backend cannot read, such as a freed one, has no influence on others of its class."""

    def array_info(x: Toy) -> Any:
        if x.data.size == 0:
            raise xbridge.UnsupportedArrayError.build("read a Toy", "it was freed")
        return get_backend("numpy").array_info(x.data)

    xbridge.register_backend("toylib", make_backend(array_info=array_info, fast_to_numpy=lambda _: None))
    with pytest.raises(xbridge.UnsupportedArrayError, match="freed"):
        xbridge.to_numpy(Toy(np.ones(0)))
    assert xbridge.to_numpy(Toy(np.ones(2))).tolist() == [1, 1]


def test_refusal__leaves_cached_calls_in_their_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals of many classes are forgotten in time, and make no call be planned again."""
    xbridge.to_numpy(A, dtype="float32")
    calls = dict(cached)
    for i in range(MOST + 1):
        with pytest.raises(xbridge.UnsupportedArrayError):
            xbridge.to_numpy(make_global_class(monkeypatch, f"Kind{i}")())
    assert cached == calls
    assert calls
    assert len(refusals) == MOST


def test_refusal__depends_on_text_and_containers_themselves() -> None:
    """What is said of text, of a dict or of a list is not said of another one."""
    for x, hint in (
        ("1.5", "float"),
        ("a.npy", "numpy.load"),
        ("a", ""),
        ({"a": 1}, "scalars"),
        ({}, "tree"),
    ):
        with pytest.raises(xbridge.UnsupportedArrayError) as caught:
            xbridge.to_numpy(x)
        assert hint in caught.value.hint
        assert bool(hint) == bool(caught.value.hint)
