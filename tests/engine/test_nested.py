"""Numbers, and nested lists of numbers and arrays, without torch: exact, or refused."""

from __future__ import annotations

import array
import enum
import math
from collections import UserList, deque
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from exporters import array_only
from toylib import CHIP, CPU, Placed, Toy, make_backend, make_placed_backend

import xbridge
from xbridge.protocol import Unsupported

if TYPE_CHECKING:
    from xbridge import Device

One = enum.IntEnum("One", {"ONE": 1})
F4, F8, U1 = np.ones(2, "f4"), np.ones(2), np.ones(2, "u1")


class Point(NamedTuple):
    """A tuple of numbers."""

    x: float
    y: float


def deep(x: object, levels: int) -> list[object]:
    """`x` below that many lists."""
    nested: Any = x
    for _ in range(levels):
        nested = [nested]
    assert isinstance(nested, list)
    return nested


NUMBERS: list[tuple[object, str, object]] = [
    (1, "int64", 1),
    (True, "bool", True),
    (0.1, "float64", 0.1),
    (1j, "complex128", 1j),
    (2**63, "uint64", 2**63),
    (-(2**63), "int64", -(2**63)),
    ([], "float64", []),
    ([[], []], "float64", [[], []]),
    (range(3), "int64", [0, 1, 2]),
    ([range(2), (1, 2), [3, 4]], "int64", [[0, 1], [1, 2], [3, 4]]),
    (Point(1, 2.5), "float64", [1.0, 2.5]),
    ([True, 2], "int64", [1, 2]),
    ([True, 0.5], "float64", [1.0, 0.5]),
    ([1, 1j], "complex128", [1 + 0j, 1j]),
    ([One.ONE, 3], "int64", [1, 3]),
    ([2**53, 0.5], "float64", [2.0**53, 0.5]),
    ([math.inf, -0.0, 1e-310], "float64", [math.inf, -0.0, 1e-310]),
    (deep(1, 64), "int64", deep(1, 64)),
]


@pytest.mark.parametrize(("x", "dtype", "expected"), NUMBERS, ids=lambda x: repr(x)[:30])
def test_asarray__numbers_have_the_default_dtype(x: object, dtype: str, expected: object) -> None:
    """Numbers and lists of numbers become arrays of the documented dtype with exact values."""
    made = xbridge.asarray(x)
    assert type(made) is np.ndarray
    assert (made.dtype, repr(made.tolist())) == (np.dtype(dtype), repr(expected))


L, O, U, D = xbridge.ValueLossError, xbridge.OptionError, xbridge.UnsupportedArrayError, xbridge.DTypeError  # noqa: E741
REFUSED: list[tuple[object, type[xbridge.XBridgeError]]] = [
    (2**64, L),
    ([-1, 2**63], L),
    ([2**53 + 1, 0.5], L),
    ([2**53 + 1, 1j], L),
    ([[1], [1, 2]], O),
    ([1, [2]], O),
    ([[], [1]], O),
    ([[1, 2], [[1], [2]]], O),
    (deep(1, 65), O),
    (["a"], U),
    ([np.str_("a")], U),
    ([None], U),
    ([1.0, None], U),
    ([{}], U),
    ([b"a"], U),
    ([{1}], U),
    ([...], U),
    ([Fraction(1, 2)], U),
    ([Decimal(1)], U),
    (deque([1]), U),
    (UserList([1]), U),
    ([F8, "ab"], U),
    ([F8, None], U),
    ([F8, [None]], U),
    ([F8, F8[:1]], O),
    ([F8, [1]], O),
    ([[F8], F8], O),
    ([[F8], []], O),
    ([[], [F8]], O),
    ([F8, 1.0], O),
    ([[F8[0], 1.0], {}], U),
    ([[F8[0], 1.0], "ab"], U),
    ([[F8[0], 1.0], np.ones((2, 2))], O),
    ([F4, np.ones(2, "M8[D]")], D),
    ([[[2**64, "a"]]], U),
    ([np.longdouble(1), np.float32(1)], D),
]


@pytest.mark.parametrize(("x", "error"), REFUSED, ids=lambda x: repr(x)[:40])
def test_asarray__refuses_invalid_lists(x: object, error: type[xbridge.XBridgeError]) -> None:
    """Ragged lists, text, None and numbers that no dtype can hold raise an error that names the list."""
    with pytest.raises(error, match=r"^cannot "):
        xbridge.asarray(x)


@pytest.mark.parametrize("levels", [25, 40, 64])
@pytest.mark.parametrize("mixed", [False, True])
def test_asarray__refuses_more_axes_than_numpy(levels: int, mixed: bool) -> None:
    """A list nested deeper than NumPy's limit raises."""
    a = np.ones((1,) * 40)
    x = [deep(a, levels - 1), deep(a.astype("f4") if mixed else a, levels - 1)]
    with pytest.raises(O, match=rf"have {levels + 40} axes, and NumPy has 64 at most"):
        xbridge.asarray(x)
    assert xbridge.asarray(deep(a, 24)).shape == (1,) * 64


def cycles() -> list[list[Any]]:
    """Lists that contain themselves, in several ways."""
    plain: list[Any] = []
    plain.append(plain)
    wide: list[Any] = []
    wide.extend([wide, wide, wide])
    by_tuple: list[Any] = [1]
    by_tuple.append((by_tuple,))
    beside_array: list[Any] = [F8]
    beside_array.append(beside_array)
    return [plain, wide, by_tuple, beside_array]


@pytest.mark.parametrize("cycle", cycles(), ids=["plain", "wide", "by a tuple", "beside an array"])
def test_asarray__refuses_recursive_lists(cycle: list[Any]) -> None:
    """A list that contains itself raises instead of recursing forever."""
    with pytest.raises(xbridge.OptionError, match="contains itself"):
        xbridge.asarray(cycle)


@pytest.mark.parametrize(
    ("x", "dtype", "expected"),
    [
        ([0.5, 2**24 + 1], "float32", [0.5, 2.0**24]),
        ([2**53 + 1, 0.5], "float64", [2.0**53, 0.5]),
        ([1.7, -1.7], "int8", [1, -1]),
        ([65504.0, 1e6], "float16", [65504.0, math.inf]),
        ([0, 2, 0.5], bool, [False, True, True]),
        (2**63, "uint64", 2**63),
        ([], int, []),
        ([-128, 127], "int8", [-128, 127]),
        ([0, 255], "uint8", [0, 255]),
    ],
)
def test_asarray__explicit_dtype_casts_numbers(x: object, dtype: object, expected: object) -> None:
    """With an explicit dtype, numbers are rounded or truncated as in a cast."""
    assert xbridge.asarray(x, dtype=dtype).tolist() == expected


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (300, "int8"),
        ([-1], "uint8"),
        ([2**63], "int64"),
        ([2**31], "int32"),
        ([-1, 2**63], "int64"),
        (256, "uint8"),
        (-129, "int8"),
    ],
)
def test_asarray__integers_never_wrap(x: Any, dtype: str) -> None:
    """An integer that does not fit raises even if the dtype is explicit."""
    with pytest.raises(xbridge.ValueLossError, match="; try "):
        xbridge.asarray(x, dtype=dtype)
    with pytest.raises(xbridge.ValueLossError, match="; try "):
        xbridge.asarray([np.zeros(np.shape(x), "f4"), x], dtype=dtype)


PROMOTED: list[tuple[list[object], str, object]] = [
    ([F4, F4], "f4", [[1, 1], [1, 1]]),
    ([F4, F8], "f8", [[1, 1], [1, 1]]),
    ([F4, U1], "f4", [[1, 1], [1, 1]]),
    ([U1, [3, 1]], "u1", [[1, 1], [3, 1]]),
    ([F4, [1, 2]], "f4", [[1, 1], [1, 2]]),
    ([F4[0], math.inf], "f4", [1.0, math.inf]),
    ([F4[0], 1j], "c8", [1, 1j]),
    ([np.int8(1), True], "i1", [1, 1]),
    ([np.bool_(True), 3], "i8", [1, 3]),
    ([[F4[0], 2.0], np.array([3, 4], "f4")], "f4", [[1, 2], [3, 4]]),
    ([np.array([1], ">i4"), np.array([2], ">i4")], "i4", [[1], [2]]),
    ([np.array([1], ">i4"), np.array([2], "i4")], "i4", [[1], [2]]),
    ([np.array([2**64 - 1], "Q"), np.array([0], "u8")], "u8", [[2**64 - 1], [0]]),
    ([F8[::-1], np.broadcast_to(2.0, (2,))], "f8", [[1, 1], [2, 2]]),
    ([np.ones((2, 2)), [[1, 2], [3, 4.5]]], "f8", [[[1, 1], [1, 1]], [[1, 2], [3, 4.5]]]),
    ([np.empty(0), []], "f8", [[], []]),
    ([[F4, F8], np.ones((2, 2))], "f8", [[[1, 1], [1, 1]], [[1, 1], [1, 1]]]),
    ([array.array("d", [1, 2]), array_only(F8)], "f8", [[1, 2], [1, 1]]),
]


@pytest.mark.parametrize(("x", "dtype", "expected"), PROMOTED, ids=lambda x: " ".join(repr(x).split())[:50])
def test_asarray__promotes_like_numpy(x: list[object], dtype: str, expected: object) -> None:
    """Arrays in a list are promoted by NumPy's rules, and numbers adapt to them."""
    made = xbridge.asarray(x)
    assert made.dtype.str == np.dtype(dtype).str
    assert made.tolist() == expected
    assert not any(np.shares_memory(made, a) for a in x if isinstance(a, np.ndarray))


@pytest.mark.parametrize(
    "x",
    [
        [U1, [300, 1]],
        [F4, [2**24 + 1, 0.5]],
        [F8, [2**53 + 1, 0.5]],
        [F4, [2**24 + 1, 1j]],
        [F8, (F8[0], 1.0), [2**53 + 1, -0.0]],
        [np.uint8(1), -1],
        [np.int64(1), 2**63],
        [np.float32(1), 2**24 + 1],
        [np.float32(1), 1e300],
        [np.float16(1), 1e5],
        [np.complex64(1), 1e300j],
        [np.int64(2**53 + 1), np.float64(1)],
        [np.array([2**64 - 1], "u8"), np.ones(1, "i8")],
        [np.array([2**53 + 1]), np.array([0.5])],
    ],
    ids=repr,
)
def test_asarray__refuses_lossy_promotion(x: list[object]) -> None:
    """A promotion that would change a value raises."""
    with pytest.raises(xbridge.ValueLossError, match="; try "):
        xbridge.asarray(x)


@pytest.fixture
def narrow(own_registry: None) -> None:
    """A library whose device has no dtypes of 64 bits."""

    def lacks(dtype: str, device: Device) -> Unsupported | None:
        narrower = dtype.replace("64", "32")
        if device == CPU or dtype in (narrower, "complex64"):
            return None
        return Unsupported(xbridge.DTypeError, f"the chip has no {dtype}", f"dtype={narrower!r}")

    def default_dtype(category: str, device: Device) -> str:
        return {"int": "int64", "float": "float64"}[category].replace("64", "64" if device == CPU else "32")

    def stack(xs: list[Placed], shape: tuple[int, ...]) -> Placed:
        return Placed(np.stack([x.data for x in xs]).reshape(*shape, *xs[0].data.shape), xs[0].device)

    backend = make_placed_backend(unsupported_dtype=lacks, default_dtype=default_dtype, stack=stack)
    xbridge.register_backend("toylib", backend)


ONE, HALF = Placed(np.array(1, "i4"), CHIP), Placed(np.array(0.5, "f4"), CHIP)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("x", "options", "expected"),
    [
        ([1, 2], {}, ("int64", CPU, [1, 2])),
        ([1, 2], {"device": "chip"}, ("int32", CHIP, [1, 2])),
        ([0.5], {"device": "chip"}, ("float32", CHIP, [0.5])),
        ([2**31], {"device": "chip", "dtype": "uint32"}, ("uint32", CHIP, [2**31])),
        ([ONE, 2], {}, ("int32", CHIP, [1, 2])),
        ([ONE, 2], {"dtype": "nearest"}, ("int32", CHIP, [1, 2])),
        ([ONE, 2**31], {"dtype": "uint32"}, ("uint32", CHIP, [1, 2**31])),
        ([ONE, 2**31], {"device": "cpu", "dtype": "int64"}, ("int64", CPU, [1, 2**31])),
        ([ONE, HALF], {"dtype": "default"}, ("float32", CHIP, [1, 0.5])),
        ([ONE, 0.5], {"dtype": "nearest"}, ("float32", CHIP, [1, 0.5])),
        ([np.arange(2), [3, 4]], {"device": "chip", "dtype": "default"}, ("int32", CHIP, [[0, 1], [3, 4]])),
        ([np.arange(2), [3, 4]], {"dtype": "default"}, ("int64", CPU, [[0, 1], [3, 4]])),
    ],
)
def test_asarray__dtype_depends_on_the_device(
    x: list[object], options: dict[str, Any], expected: tuple[str, Device, list[object]]
) -> None:
    """Lists get dtypes that exist on the target device."""
    made = xbridge.asarray(x, backend="toylib", **options)
    assert (made.data.dtype, made.device, made.data.tolist()) == expected


def test_asarray__refuses_masked_arrays_in_lists() -> None:
    """A masked array anywhere in a list raises."""
    masked = np.ma.masked_array([1.0, 2.0], mask=[True, False])
    for x in ([masked, F8], [[F8[0], F8[1]], masked], [1.0, np.ma.masked], [[masked], [F8]]):
        with pytest.raises(xbridge.UnsupportedArrayError, match=r"try x\.filled"):
            xbridge.asarray(x)


@pytest.mark.parametrize("dtype", ["M8[s]", "U1", "S1", "O", "i4,i4", "g"])
def test_asarray__stacks_non_numeric_arrays_in_numpy(dtype: str) -> None:
    """Arrays of text, dates or objects can be stacked within NumPy."""
    for x in (np.ones(2, dtype), np.ones((), dtype)):
        for made in (xbridge.asarray([x, x]), xbridge.align([x, x], np.ones(1))[0]):
            assert (made.dtype, made.shape) == (x.dtype, (2, *x.shape))
            assert repr(made.tolist()) == repr([x.tolist()] * 2)
    with xbridge.record():
        assert xbridge.asarray([x, x]).dtype == x.dtype


def test_asarray__refuses_lists_of_ndarray_subclasses() -> None:
    """Arrays of a subclass, which may carry a unit, are not stacked."""

    class Quantity(np.ndarray):
        pass

    x = np.ones(2).view(Quantity)
    with pytest.raises(xbridge.UnsupportedArrayError, match="may mean more than its numbers"):
        xbridge.asarray([x, x])


def test_asarray__dataframe_in_a_list_is_not_its_columns() -> None:
    """A DataFrame in a list is refused instead of being read as its column names."""
    pandas = pytest.importorskip("pandas")
    row, table = [np.float64(1), np.float64(2)], pandas.DataFrame([[5.0, 6.0], [7.0, 8.0]])
    with pytest.raises(xbridge.OptionError, match="; try "):
        xbridge.asarray([row, table])
    assert xbridge.asarray([row, pandas.Series([3.0, 4.0], index=[1, 0])]).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("x", [[1, 2], 1, (), [[]], [F8], [np.empty(0)], [[F8], [F8]]], ids=repr)
def test_asarray__refuses_copy_false_for_a_list(x: object) -> None:
    """Lists share no memory, so `copy=False` raises, also for an empty list and after a call without it."""
    for _ in range(2):
        assert xbridge.backend_of(xbridge.asarray(x)) == "numpy"
        with pytest.raises(xbridge.CopyError, match="try copy=None"):
            xbridge.asarray(x, copy=False)


@pytest.mark.usefixtures("own_registry")
def test_asarray__refuses_arrays_on_several_devices() -> None:
    """Arrays on different devices are stacked only if the target is explicit."""

    def array_info(x: Toy) -> Any:
        return plain.array_info(x)._replace(device=xbridge.Device(f"toy:{x.data.dtype.itemsize}"))

    def at(device: xbridge.Device, near: xbridge.Device) -> xbridge.Device:
        return device

    plain = make_backend()
    xbridge.register_backend("toylib", make_backend(array_info=array_info, resolve_device=at))
    near, far = Toy(np.ones(2, "f4")), Toy(np.ones(2, "f8"))
    for x, places in (([near, far], "toy:4, toy:8"), ([near, np.ones(2)], "toy:4, cpu")):
        with pytest.raises(xbridge.DeviceError, match=rf"{places}; try align\(\*arrays\) first"):
            xbridge.asarray(x)
    for x in ([near, near], [near, [1, 1]]):
        assert xbridge.asarray(x, backend="numpy", dtype="float64").tolist() == [[1, 1], [1, 1]]
