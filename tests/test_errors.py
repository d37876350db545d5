"""Every form of message, word for word: what was asked, why not, what to type next."""

from __future__ import annotations

import array
import copy as copies
import enum
import io
import pickle
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from exporters import Exporter
from messages import NO_IMPORTER, message_of
from toylib import Toy, make_backend

import xbridge
from xbridge import errors
from xbridge._core import dtypes
from xbridge.backends import INDEX
from xbridge.backends._registry import get

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], object]

pytestmark = pytest.mark.usefixtures("own_registry")


class Metres(np.ndarray[Any, np.dtype[Any]]):
    """What a library of units would make of an array."""


A = np.arange(3.0)
KNOWN = ", ".join(INDEX)
DTYPES = ", ".join(dtypes.DTYPES)
CYCLE: list[object] = []
CYCLE.append(CYCLE)


def options(**changes: object) -> Call:
    return lambda: xbridge.to_backend(A, "numpy", **changes)  # type: ignore[arg-type] # often the mistake


def nested(thing: object, **changes: object) -> Call:
    return lambda: xbridge.asarray(thing, **changes)  # type: ignore[arg-type] # likewise


FORMS: list[tuple[Call, type[xbridge.XBridgeError], str]] = [
    (
        lambda: xbridge.to_backend(A, "nunpy"),
        xbridge.UnknownBackendError,
        f"cannot find backend 'nunpy': the known names are {KNOWN}; try 'numpy'",
    ),
    (
        lambda: xbridge.to_backend(A, "torhc"),
        xbridge.UnknownBackendError,
        f"cannot find backend 'torhc': the known names are {KNOWN}; try 'torch'",
    ),
    (
        lambda: xbridge.to_backend(A, "zzz"),
        xbridge.UnknownBackendError,
        f"cannot find backend 'zzz': the known names are {KNOWN}; try one of these",
    ),
    (
        lambda: xbridge.register_backend(3, "three"),  # type: ignore[arg-type] # that is the mistake
        xbridge.OptionError,
        "cannot register a backend 3: a name is a string; try 'mylib'",
    ),
    (
        lambda: xbridge.register_backend("numpy", "other"),
        xbridge.OptionError,
        (
            "cannot register a backend 'numpy': that name belongs to xbridge.backends.numpy; "
            "try replace=True, or another name"
        ),
    ),
    (
        options(copy="no"),
        xbridge.OptionError,
        "cannot take copy='no': it is None, True or False; try copy=None",
    ),
    (
        options(grad="drop"),
        xbridge.OptionError,
        "cannot take grad='drop': it is None, 'keep' or 'detach'; try grad='detach'",
    ),
    (
        nested(A, requires_grad=1),
        xbridge.OptionError,
        "cannot take requires_grad=1: it is None, True or False; try requires_grad=None",
    ),
    (
        nested(A, requires_grad=False, grad="keep"),
        xbridge.OptionError,
        "cannot take requires_grad=False with grad='keep': they contradict each other; try one of them",
    ),
    (
        options(dtype="flaot32"),
        xbridge.DTypeError,
        (
            "cannot read dtype 'flaot32': it is no canonical name and no library's native dtype; "
            "try dtype='float32'"
        ),
    ),
    (
        options(dtype="int61"),
        xbridge.DTypeError,
        (
            "cannot read dtype 'int61': it is no canonical name and no library's native dtype; "
            f"try one of {DTYPES}"
        ),
    ),
    (
        options(dtype="double"),
        xbridge.DTypeError,
        (
            "cannot read dtype 'double': it is no canonical name and no library's native dtype; "
            "try dtype='float64'"
        ),
    ),
    (
        options(dtype="zzz"),
        xbridge.DTypeError,
        (
            "cannot read dtype 'zzz': it is no canonical name and no library's native dtype; "
            f"try one of {DTYPES}"
        ),
    ),
    (
        options(device="cuda:x"),
        xbridge.DeviceError,
        "cannot read device 'cuda:x': a device is a kind or kind:index; try device='cpu'",
    ),
    (
        options(device=0),
        xbridge.DeviceError,
        "cannot put an array of numpy on 'gpu:0': NumPy arrays are in host memory; try device='cpu'",
    ),
    (
        options(device=-1),
        xbridge.DeviceError,
        "cannot read device -1: an index counts from 0, and has at most 31 bits; try device='cpu'",
    ),
    (
        options(device=True),
        xbridge.DeviceError,
        "cannot read device True: no library knows it as a device; try device='cpu'",
    ),
    (
        options(device="cuda"),
        xbridge.DeviceError,
        "cannot put an array of numpy on 'cuda': NumPy arrays are in host memory; try device='cpu'",
    ),
    (
        options(dtype="float32", copy=False),
        xbridge.CopyError,
        (
            "cannot convert a numpy float64 array of shape (3,) on cpu to numpy with copy=False: "
            "float64 becomes float32; try copy=None"
        ),
    ),
    (
        lambda: xbridge.to_numpy(A * 1j, dtype="float64"),
        xbridge.DTypeError,
        (
            "cannot convert a numpy complex128 array of shape (3,) on cpu to numpy: "
            "a cast from complex128 to float64 drops the imaginary part; try x.real"
        ),
    ),
    (
        nested(A, requires_grad=True),
        xbridge.GradientError,
        (
            "cannot convert a numpy float64 array of shape (3,) on cpu to numpy with requires_grad=True: "
            "NumPy does not differentiate; try a backend that has gradients"
        ),
    ),
    (
        lambda: xbridge.to_numpy(np.array(["x"]), dtype="float64"),
        xbridge.DTypeError,
        (
            "cannot convert a numpy <U1 array of shape (1,) on cpu to numpy: "
            "the step astype float64 failed with "
            "ValueError(\"could not convert string to float: np.str_('x')\"); try that step in numpy itself"
        ),
    ),
    (
        lambda: xbridge.to_numpy(np.ma.masked_array(A, mask=True)),
        xbridge.UnsupportedArrayError,
        (
            "cannot convert a numpy float64 array of shape (3,) on cpu to numpy: "
            "its mask would be lost; try x.filled(value)"
        ),
    ),
    (
        lambda: xbridge.to_list(A.view(Metres)),
        xbridge.UnsupportedArrayError,
        (
            "cannot convert a numpy float64 array of shape (3,) on cpu to numpy: "
            "a Metres may mean more than its numbers; try x.view(numpy.ndarray)"
        ),
    ),
    (
        lambda: xbridge.to_list(np.array(["x"])),
        xbridge.DTypeError,
        (
            "cannot convert a numpy <U1 array of shape (1,) on cpu to numpy: "
            "<U1 is not a numeric dtype; try x.astype(float) if it spells numbers, or x.tolist()"
        ),
    ),
    (
        lambda: get("numpy").require_grad(A),
        xbridge.GradientError,
        "cannot make an array of numpy require grad: NumPy does not differentiate; try backend='torch'",
    ),
    (
        lambda: xbridge.to_list(np.array("2020", "M8[D]")),
        xbridge.DTypeError,
        (
            "cannot convert a numpy datetime64[D] array of shape () on cpu to numpy: "
            "datetime64[D] is not a numeric dtype; try x.astype('int64')"
        ),
    ),
    (
        lambda: xbridge.to_list(np.ones(2, np.longdouble)),
        xbridge.DTypeError,
        (
            "cannot list an array of longdouble: Python has no such numbers; "
            "try to_numpy(x, dtype='float64').tolist()"
        ),
    ),
    (
        lambda: xbridge.to_numpy([1]),
        xbridge.UnsupportedArrayError,
        (
            "cannot convert a list: numbers and lists are not arrays; "
            "try asarray(x), or xbridge.tree.to_backend for the arrays in it"
        ),
    ),
    (
        lambda: xbridge.to_numpy({}),
        xbridge.UnsupportedArrayError,
        (
            "cannot convert a dict: no backend owns the type and it exports no memory; "
            "try xbridge.tree.to_backend for the arrays in it"
        ),
    ),
    (
        lambda: xbridge.to_numpy({}.values()),
        xbridge.UnsupportedArrayError,
        (
            "cannot convert a dict_values: no backend owns the type and it exports no memory; "
            "try list(x), and asarray if it holds numbers, "
            "or xbridge.tree.to_backend for the arrays in it"
        ),
    ),
    (
        lambda: xbridge.to_numpy(MappingProxyType({})),
        xbridge.UnsupportedArrayError,
        (
            "cannot convert a mappingproxy: no backend owns the type and it exports no memory; "
            "try dict(x), and xbridge.tree.to_backend for the arrays in it"
        ),
    ),
    (
        lambda: xbridge.to_numpy("1.5"),
        xbridge.UnsupportedArrayError,
        (
            "cannot convert a str: no backend owns the type and it exports no memory; "
            "try asarray(float(x)) if it spells a number"
        ),
    ),
    (
        lambda: xbridge.to_numpy(None),
        xbridge.UnsupportedArrayError,
        ("cannot convert a NoneType: no backend owns the type and it exports no memory; try an array"),
    ),
    (
        lambda: xbridge.to_numpy(b"abc"),
        xbridge.UnsupportedArrayError,
        "cannot convert bytes: plain bytes have no dtype; try numpy.frombuffer(x, dtype)",
    ),
    (
        lambda: xbridge.to_numpy(np.float64(1), copy=False),
        xbridge.CopyError,
        "cannot share the memory of a float64: it hands out a copy; try copy=None",
    ),
    (
        lambda: xbridge.to_numpy(Exporter(__array__=lambda: "x")),
        xbridge.UnsupportedArrayError,
        "cannot read a Exporter: its __array__ returned a str; try converting it in its own library first",
    ),
    (
        lambda: xbridge.to_numpy(Exporter(__array__=lambda: 1 / 0)),
        xbridge.UnsupportedArrayError,
        (
            "cannot read a Exporter: its export failed with ZeroDivisionError('division by zero'); "
            "try converting it in its own library first"
        ),
    ),
    (
        lambda: xbridge.to_numpy(Exporter(__dlpack_device__=lambda: (2, 77), __dlpack__=lambda: None)),
        xbridge.DeviceError,
        (
            "cannot read a Exporter through DLPack: its memory is on cuda:77; "
            f"try moving it to the cpu first{NO_IMPORTER}"
        ),
    ),
    (
        lambda: xbridge.backend_of(3),
        xbridge.UnsupportedArrayError,
        "cannot name the backend of a int: no backend owns that type; try asarray(x)",
    ),
    (
        lambda: xbridge.array_namespace(3),
        xbridge.UnsupportedArrayError,
        "cannot find one namespace: the arrays come from nowhere; try an array",
    ),
    (
        nested([A, A[:2]]),
        xbridge.OptionError,
        "cannot make an array of this list: it holds shapes (3,), (2,); try arrays of one shape",
    ),
    (
        nested([A], copy=False),
        xbridge.CopyError,
        "cannot make an array of this list with copy=False: its elements lie apart in memory; try copy=None",
    ),
    (
        nested([[A], A[0]]),
        xbridge.OptionError,
        (
            "cannot make an array of this list: it holds arrays and numbers at different depths; "
            "try rows of one length"
        ),
    ),
    (
        nested([1, None]),
        xbridge.UnsupportedArrayError,
        (
            "cannot make an array of this list: not all of its items are numbers; "
            "try a list of numbers or arrays"
        ),
    ),
    (
        nested([-1, 2**63]),
        xbridge.ValueLossError,
        ("cannot make an array of this list: its integers fit no integer dtype together; try smaller ones"),
    ),
    (
        nested([0.5, 2**53 + 1]),
        xbridge.ValueLossError,
        (
            "cannot make a float64 array of this list: an integer would be rounded in float64; "
            "try dtype='float64' to say that it may be"
        ),
    ),
    (
        nested([np.array([2**53 + 1]), np.array([0.5])]),
        xbridge.ValueLossError,
        (
            "cannot turn int64 into float64 unasked: a value does not fit float64; "
            "try naming one: dtype='int64' or dtype='float64'"
        ),
    ),
    (
        nested([np.uint8(1), 300]),
        xbridge.ValueLossError,
        "cannot make a uint8 array of this list: an integer does not fit; try dtype='int64'",
    ),
    (
        nested(CYCLE),
        xbridge.OptionError,
        (
            "cannot make an array of this list: it is nested more than 64 deep, or contains itself; "
            "try rows of one length"
        ),
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), FORMS, ids=[form[2][:60] for form in FORMS])
def test_a_message_says_what_was_asked_why_not_and_what_to_type(
    call: Call, error: type[xbridge.XBridgeError], message: str
) -> None:
    assert message_of(call, error) == message


BUILT_IN = {
    "UnknownBackendError": LookupError,
    "MissingLibraryError": ImportError,
    "UnsupportedArrayError": TypeError,
    "DTypeError": TypeError,
    "DeviceError": ValueError,
    "CopyError": ValueError,
    "OptionError": ValueError,
    "ValueLossError": OverflowError,
    "GradientError": RuntimeError,
    "PolicyError": RuntimeError,
}
WARNINGS = {"CastWarning", "CopyWarning", "CrossingWarning", "DetachWarning", "TransferWarning"}


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
        (Fraction(1, 2), "asarray(float(x))"),
        (Path("a.npy"), "numpy.load(x)"),
        (io.BytesIO(b"ab"), "numpy.frombuffer(x.getbuffer(), dtype)"),
        (Future[Any](), "x.result()"),
        (Pair(1, 2), "xbridge.tree.to_backend for the arrays in it"),
        (Plain(), "vars(x), and xbridge.tree.to_backend for the arrays in it"),
        (Kind.ONE, "vars(x), and xbridge.tree.to_backend for the arrays in it"),
        (
            type("Model", (), {"state_dict": None})(),
            "xbridge.tree.to_backend for the arrays of x.state_dict()",
        ),
        (type("Matrix", (), {"toarray": None})(), "x.toarray()"),
        (type("Promise", (), {"compute": None})(), "x.compute()"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_the_hint_for_an_object_that_is_not_an_array_is_a_call_that_its_class_has(
    x: object, hint: str
) -> None:
    with pytest.raises(xbridge.UnsupportedArrayError) as caught:
        xbridge.to_numpy(x)
    assert str(caught.value).endswith(f"; try {hint}")


def test_every_error_is_exported_and_is_the_built_in_that_a_caller_would_guess() -> None:
    assert set(errors.__all__) == {"XBridgeError", *BUILT_IN} | WARNINGS
    for name, built_in in BUILT_IN.items():
        error = getattr(xbridge, name)
        assert issubclass(error, xbridge.XBridgeError)
        assert issubclass(error, built_in)
        assert name in xbridge.__all__
    for name in WARNINGS:
        assert issubclass(getattr(xbridge, name), xbridge.CrossingWarning)
    assert issubclass(xbridge.CrossingWarning, UserWarning)


def test_an_error_survives_pickling() -> None:
    with pytest.raises(xbridge.CopyError) as caught:
        xbridge.to_numpy(A, dtype="int8", copy=False)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (xbridge.CopyError, str(caught.value))


def test_what_a_library_raised_is_chained() -> None:
    with pytest.raises(xbridge.DTypeError) as caught:
        xbridge.to_numpy(np.array(["x"]), dtype="float64")
    assert isinstance(caught.value.__cause__, ValueError)
    assert not isinstance(caught.value.__cause__, xbridge.XBridgeError)


def test_a_refusal_leaves_everything_as_it_was() -> None:
    xbridge.register_backend("toylib", make_backend())
    numbers = array.array("d", [1.0, 2.0])
    toy = Toy(np.ones(3))
    before = copies.deepcopy((numbers, toy.data))
    with pytest.raises(xbridge.UnsupportedArrayError):
        xbridge.align(numbers, toy, {})
    assert numbers == before[0]
    assert toy.data.tolist() == before[1].tolist()
    numbers.append(3.0)
