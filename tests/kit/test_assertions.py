"""Assertions pass where nothing is different, and can fail for every kind of difference.

What they say is compared with bytes, exact fractions and writes, never with what they use themselves.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toylib import Toy, make_backend

import xbridge
from xbridge.backends import numpy as host
from xbridge.testing import (
    assert_close,
    assert_independent,
    assert_less,
    assert_same,
    assert_shares_memory,
    assert_unchanged,
)

Host = np.ndarray[Any, np.dtype[Any]]

A = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def changed(value: float, at: tuple[int, int] = (1, 2)) -> Host:
    """`A` with another value."""
    array = A.copy()
    array[at] = value
    return array


def pattern(code: int, dtype: str) -> Host:
    """One value, by its bits."""
    return np.array([code], f"u{np.dtype(dtype).itemsize}").view(dtype)


def said(failure: pytest.ExceptionInfo[AssertionError]) -> list[str]:
    """The lines of a report."""
    return str(failure.value).splitlines()


@pytest.fixture
def toy(own_registry: None) -> type[Toy]:
    """A library of a stranger, on a device of its own."""
    elsewhere = xbridge.Device("toy:0")
    module = make_backend(
        array_info=lambda x: host.array_info(x.data)._replace(device=elsewhere),
        resolve_device=lambda device, near: elsewhere if device.kind == "toy" else device,
    )
    xbridge.register_backend("toylib", module)
    return Toy


# -- the same ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        A.copy(),
        np.asfortranarray(A),
        np.repeat(A, 2, axis=0)[::2],
        A[::-1].copy()[::-1],
        A.astype(A.dtype.newbyteorder()),
        np.frombuffer(b"-" + A.tobytes(), np.uint8)[1:].view(A.dtype).reshape(A.shape),
    ],
)
def test_assert_same__equal_values_in_any_layout(other: Host) -> None:
    """Only the values count, not the layout, alignment or byte order of an array."""
    assert assert_same(A, other) is None  # type: ignore[func-returns-value] # that is the promise
    assert_same(other, A)


DIFFERENT = {
    "a value": (changed(7.0), "1 of 6 values"),
    "the dtype": (A.astype("f4"), "dtype"),
    "the kind": (A.astype("i8"), "dtype"),
    "the shape": (A.reshape(3, 2), "shape"),
    "one axis more": (A[None], "shape"),
    "a NaN": (changed(np.nan), "1 of 6 values"),
    "dtype and values": (changed(7.0).astype("f4"), "dtype and 1 of 6 values"),
}


@pytest.mark.parametrize(("other", "what"), DIFFERENT.values(), ids=DIFFERENT)
def test_assert_same__message_begins_with_the_difference(other: Host, what: str) -> None:
    """The first line of the message names what differs."""
    with pytest.raises(AssertionError) as failure:
        assert_same(A, other)
    assert said(failure)[0] == f"the arrays differ in {what}:"


@pytest.mark.parametrize(
    ("one", "other", "hint"),
    [
        (
            pattern(0x7FC00000, "f4"),
            pattern(0x7FC00001, "f4"),
            "different NaNs: 0x7fc00000 and 0x7fc00001",
        ),
        (pattern(0x7FC00000, "f4"), pattern(0x7F800001, "f4"), "different NaNs"),
        (np.array([0.0], "f4"), np.array([-0.0], "f4"), "different zeros: 0x00000000 and 0x80000000"),
        (
            np.array([0j], "c8"),
            -np.array([0j], "c8"),
            "different zeros: 0x00000000 0x00000000 and 0x80000000 0x80000000",
        ),
        (np.array([1 + 0j]), np.array([1 + 0j]).conj(), "different bits"),
        (pattern(1, "?"), pattern(3, "?"), "different bits: 0x01 and 0x03"),
    ],
)
def test_assert_same__equal_numbers_with_different_bits(one: Host, other: Host, hint: str) -> None:
    """NaNs, zeros and booleans with different bits differ, unless dtypes are not checked."""
    with pytest.raises(AssertionError, match=hint):
        assert_same(one, other)
    assert_same(one, other, check_dtype=False)


def test_assert_same__message_lists_the_first_few_values() -> None:
    """The message lists the first five values that differ and counts the rest."""
    with pytest.raises(AssertionError) as failure:
        assert_same(np.arange(100), np.arange(100) + 1)
    assert said(failure) == [
        "the arrays differ in 100 of 100 values:",
        "  actual    numpy int64 array of shape (100,) on cpu",
        "  expected  numpy int64 array of shape (100,) on cpu",
        "  at    actual  expected",
        "  (0,)  0       1",
        "  (1,)  1       2",
        "  (2,)  2       3",
        "  (3,)  3       4",
        "  (4,)  4       5",
        "  and 95 more",
    ]


@pytest.mark.parametrize("check", [assert_same, assert_close])
def test_assertions__check_backend_and_check_device(check: Any, toy: type[Toy]) -> None:
    """By default, devices are compared only between arrays of one library."""
    one = toy(A)
    check(one, toy(A.copy()))
    with pytest.raises(AssertionError, match="differ in backend:"):
        check(one, A)
    check(one, A, check_backend=False)
    check(A, one, check_backend=False)
    with pytest.raises(AssertionError, match="differ in device:"):
        check(one, A, check_backend=False, check_device=True)
    with pytest.raises(AssertionError, match="differ in backend and device:"):
        check(one, A, check_device=True)
    with pytest.raises(AssertionError, match="1 of 6 values"):
        check(one, changed(0.0), check_backend=False)


NUMBERS_BY_DTYPE: dict[str, list[complex]] = {
    "?": [True],
    "i1": [3, -1],
    "i4": [0],
    "i8": [2**53, 2**53 + 1, -(2**63)],
    "u8": [3, 2**63, 2**64 - 2**11, 2**64 - 1],
    "f2": [np.inf],
    "f4": [np.nan, -np.inf],
    "f8": [-0.0, 1.0, 2.0**53, -(2.0**63), 2.0**64 - 2.0**11, 2.0**64, -np.nan, np.inf],
    "c8": [complex(np.nan, 1)],
    "c16": [3 + 0j, 3 + 1j, complex(np.nan, 2)],
}
EXACT = [np.array([number], dtype) for dtype, numbers in NUMBERS_BY_DTYPE.items() for number in numbers]


@pytest.mark.parametrize("one", EXACT, ids=repr)
def test_assert_same__agrees_with_python_on_numbers(one: Host) -> None:
    """With check_dtype=False, numbers of any dtypes are the same if Python says so, or if both are NaN."""
    for other in EXACT:
        a, b = one.item(), other.item()
        if a == b or (a != a and repr(complex(a)) == repr(complex(b))):  # noqa: PLR0124 -- a NaN
            assert_same(one, other, check_dtype=False)
        else:
            with pytest.raises(AssertionError, match="1 of 1 values"):
                assert_same(one, other, check_dtype=False)
        if one.dtype != other.dtype:
            with pytest.raises(AssertionError, match="differ in dtype"):
                assert_same(one, other)


def test_assert_same__broadcasts_without_check_shape() -> None:
    """With check_shape=False, shapes that broadcast are compared element by element."""
    assert_same(np.zeros((2, 3)), np.float64(0), check_shape=False)
    with pytest.raises(AssertionError, match="5 of 6 values"):
        assert_same(A, np.array([2.0]), check_shape=False)
    with pytest.raises(AssertionError, match="differ in shape:"):
        assert_same(A, np.zeros(5), check_shape=False)


def test_assert_same__scalars_and_empty_arrays() -> None:
    """NumPy scalars are compared as 0-d arrays, and empty arrays by their shapes."""
    assert_same(np.float32(1.5), np.array(1.5, "f4"))
    assert_same(np.zeros((0, 3)), np.ones((0, 3)))
    assert_same(np.zeros(0, "i4"), np.zeros(0, "f4"), check_dtype=False)
    with pytest.raises(AssertionError, match=r"\(\)  1\.5     2\.5"):
        assert_same(np.float32(1.5), np.float32(2.5))
    with pytest.raises(AssertionError, match="shape"):
        assert_same(np.zeros((0, 3)), np.ones((3, 0)))


@pytest.mark.parametrize("wrong", [[1.0, 2.0], 1.0, None, "abc"])
def test_assertions__refuse_objects_that_are_not_arrays(wrong: object) -> None:
    """Every assertion refuses lists, numbers and other objects, and suggests `asarray`."""
    for check in (assert_same, assert_close, assert_shares_memory, assert_independent):
        with pytest.raises(
            xbridge.UnsupportedArrayError, match=r"not an array of a known library; try xbridge\.asarray"
        ):
            check(A, wrong)
    with pytest.raises(xbridge.UnsupportedArrayError), assert_unchanged(A, wrong):
        pass


@pytest.mark.parametrize(
    "refused",
    [
        np.ma.masked_array(A, A > 3),
        np.array(["a"]),
        np.array(["2000"], "M8[D]"),
        np.zeros(2, "O"),
        np.zeros(2, np.longdouble),
    ],
)
def test_assertions__refuse_unsupported_arrays(refused: Host) -> None:
    """Masked arrays and unsupported dtypes are refused, with the reason."""
    for check in (assert_same, assert_close, assert_shares_memory, assert_independent):
        with pytest.raises(xbridge.XBridgeError, match=r"^cannot \w+ an? numpy .* array: .+"):
            check(refused, refused)


WORDS = st.sampled_from(["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16"])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Host, Host]:
    """Two arrays of one dtype and shape, that hardly differ or not at all, and lie differently."""
    dtype = np.dtype(draw(WORDS))
    count = draw(st.integers(0, 6)) * 2
    size = count * dtype.itemsize
    raw = np.array(list(draw(st.binary(min_size=size, max_size=size))), np.uint8)
    other = raw.copy()
    if size and draw(st.booleans()):
        other[draw(st.integers(0, size - 1))] ^= draw(st.sampled_from([1, 0x40, 0x80]))
    one, two = (each.view(dtype).reshape(count // 2, 2) for each in (raw, other))
    return one, np.asfortranarray(two)


@given(pairs())
def test_assert_same__agrees_with_the_bytes(pair: tuple[Host, Host]) -> None:
    """Two arrays of one dtype and shape are the same exactly when their bytes are equal."""
    one, other = pair
    if one.tobytes() == other.tobytes():
        assert_same(one, other)
    else:
        with pytest.raises(AssertionError, match="values"):
            assert_same(one, other)


# -- close ---------------------------------------------------------------------------------------

TOLERANCES = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "float16": (1e-3, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_assert_close__default_tolerance_depends_on_the_dtype(dtype: str) -> None:
    """Each floating and complex dtype has default tolerances that fit its precision."""
    rtol, atol = TOLERANCES[dtype]
    expected = np.array([1.0, 100.0], dtype)
    step = np.array(atol + rtol * np.array([1.0, 100.0]))
    assert_close((expected + 0.8 * step).astype(dtype), expected)
    with pytest.raises(AssertionError, match="2 of 2 values"):
        assert_close((expected + 2 * step).astype(dtype), expected)


@pytest.mark.parametrize(
    ("dtype", "steps"),
    [
        ("bfloat16", 2),
        ("float8_e4m3fn", 1),
        ("float8_e5m2", 1),
        ("float8_e4m3fnuz", 1),
        ("float8_e5m2fnuz", 1),
        ("float8_e8m0fnu", 0),
    ],
)
def test_assert_close__default_tolerance_of_low_precision_dtypes(dtype: str, steps: int) -> None:
    """The default tolerance of a low-precision dtype is at most two representable steps."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    code = f"u{np.dtype(getattr(ml_dtypes, dtype)).itemsize}"
    one = int(np.array(1, getattr(ml_dtypes, dtype)).view(code))

    def above_one(steps: int) -> Host:
        return np.array([one + steps], code).view(getattr(ml_dtypes, dtype))

    assert_close(above_one(steps), above_one(0))
    with pytest.raises(AssertionError, match="1 of 1 values"):
        assert_close(above_one(steps + 1), above_one(0))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64"])
def test_assert_close__default_tolerance_of_integers_is_zero(dtype: str) -> None:
    """Booleans and integers have to be equal, unless a tolerance is given."""
    ones = np.ones(3, dtype)
    assert_close(ones, ones.copy())
    with pytest.raises(AssertionError, match="3 of 3 values"):
        assert_close(ones, np.zeros(3, dtype))
    assert_close(ones, np.zeros(3, dtype), atol=1)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_assert_close__distinguishes_large_integers(dtype: str) -> None:
    """Integers that float64 would round to the same number are told apart."""
    for base in (2**53, 2**62, 2**63 - 2):
        one, other = np.array([base], dtype), np.array([base + 1], dtype)
        with pytest.raises(AssertionError, match=r"largest absolute error: 1\.0"):
            assert_close(one, other)
        with pytest.raises(AssertionError):
            assert_close(one, other, atol=0.99)
        assert_close(one, other, atol=1)
        assert_close(other, one, rtol=2.0**-52)


def test_assert_close__infinities() -> None:
    """An infinity is close only to itself, whatever the tolerance."""
    inf, big = np.array([np.inf]), np.array([1e308])
    assert_close(inf, inf.copy())
    assert_close(inf, inf.copy(), rtol=0, atol=0)
    assert_close(np.array([complex(np.inf, 1)]), np.array([complex(np.inf, 1)]))
    for one, other in ((inf, -inf), (inf, big), (big, inf), (inf, inf * np.nan), (big, -big)):
        with pytest.raises(AssertionError):
            assert_close(one, other, rtol=0.5, atol=1e300)
    with pytest.raises(AssertionError):
        assert_close(np.array([complex(np.inf, 1)]), np.array([complex(np.inf, 2)]), atol=1)


def test_assert_close__equal_nan() -> None:
    """NaNs are close to each other, unless equal_nan=False, and never to a number."""
    nan, one = np.array([np.nan]), np.array([1.0])
    assert_close(nan, -nan)
    assert_close(np.array([complex(np.nan, 1)]), np.array([complex(np.nan, 2)]))
    for a, b in ((nan, one), (one, nan)):
        with pytest.raises(AssertionError, match="largest absolute error: nan"):
            assert_close(a, b)
    with pytest.raises(AssertionError, match="equal_nan=False") as failure:
        assert_close(nan, nan, equal_nan=False)
    assert said(failure)[4] == "  (0,)  nan     nan"


def test_assert_close__compares_shape_and_dtype() -> None:
    """Close arrays agree in shape, and in dtype unless that is not checked."""
    assert_close(np.zeros((0, 2)), np.ones((0, 2)))
    with pytest.raises(AssertionError, match="shape"):
        assert_close(np.zeros(3), np.zeros((1, 3)))
    with pytest.raises(AssertionError, match="dtype"):
        assert_close(np.zeros(3), np.zeros(3, "f4"))
    assert_close(np.full(3, 1.000001), np.ones(3, "f4"), check_dtype=False)


def test_assert_close__message_has_the_largest_errors() -> None:
    """The message ends with the tolerance and the largest absolute and relative errors."""
    with pytest.raises(AssertionError) as failure:
        assert_close(np.array([1.5, 100.0, 0.0, np.nan]), np.array([1.0, 101.0, 0.0, np.nan]), atol=0.1)
    assert said(failure)[3:] == [
        "  at    actual  expected",
        "  (0,)  1.5     1.0",
        "  (1,)  100.0   101.0",
        "  allowed: 0.1 + 1e-07 * abs(expected), equal_nan=True",
        "  largest absolute error: 1.0 at (1,)",
        "  largest relative error: 0.5 at (0,)",
    ]


@pytest.mark.parametrize("tolerance", [-1.0, math.nan, math.inf, 10**400, "x", [1], 1j, np.ones(2)])
def test_assert_close__refuses_invalid_tolerances(tolerance: Any) -> None:
    """A tolerance that is negative, not finite or not a real number is refused."""
    with pytest.raises(xbridge.OptionError, match="cannot compare with rtol"):
        assert_close(A, A, rtol=tolerance)
    with pytest.raises(xbridge.OptionError, match="cannot compare with atol"):
        assert_close(A, A, atol=tolerance)


NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(-1e30, 1e30)


@given(NUMBERS, NUMBERS, st.sampled_from([0.0, 1e-12, 0.5, 1.0]))
def test_assert_close__agrees_with_exact_fractions(one: float, other: float, rtol: float) -> None:
    """Two numbers are close when their exact difference is within the tolerance."""
    error, allowed = abs(Fraction(one) - Fraction(other)), Fraction(rtol) * abs(Fraction(other))
    if error == 0 or error < allowed * Fraction(0.999):
        assert_close(np.array(one), np.array(other), rtol=rtol, atol=0, check_dtype=False)
    elif error > allowed * Fraction(1.001):
        with pytest.raises(AssertionError):
            assert_close(np.array(one), np.array(other), rtol=rtol, atol=0, check_dtype=False)


@given(NUMBERS, st.integers(1, 8), st.sampled_from(["float32", "float64"]))
def test_assert_close__ulp_agrees_with_numpy(number: float, steps: int, dtype: str) -> None:
    """Numbers that are some units in the last place apart are close with that ulp, and not with a third."""
    one = np.array([number], dtype)
    other = one.copy()
    for _ in range(steps):
        other = np.nextafter(other, np.array(np.inf, dtype))
    assert_close(other, one, ulp=steps)
    assert_close(one, other, ulp=steps)
    if steps > 3:
        with pytest.raises(AssertionError):
            assert_close(other, one, ulp=steps / 3)


def test_assert_close__ulp_alone() -> None:
    """Integers are equal in the last place only if they are equal, and another tolerance is refused."""
    assert_close(np.arange(3), np.arange(3), ulp=4)
    with pytest.raises(AssertionError):
        assert_close(np.arange(3), np.arange(1, 4), ulp=4)
    with pytest.raises(xbridge.OptionError, match="try ulp=4"):
        assert_close(A, A, ulp=4, rtol=1e-6)


@given(NUMBERS, NUMBERS)
def test_assert_less__agrees_with_python(one: float, other: float) -> None:
    """A number is below another one exactly when Python says so, whatever the dtypes."""
    for or_equal, below in ((False, one < other), (True, one <= other)):
        try:
            assert_less(np.array(one), np.array(other), or_equal=or_equal)
            passed = True
        except AssertionError:
            passed = False
        assert passed == below


def test_assert_less__bounds_and_nan(toy: type[Toy]) -> None:
    """Either side may be a number, arrays broadcast across libraries, and NaN is below nothing."""
    assert_less(0, toy(A))
    assert_less(A, 6, or_equal=True)
    assert_less(A[0], toy(A + 4))
    assert_less(np.array([-np.inf]), np.array([np.inf]))
    for lower, upper in ((A, 6), (np.array([np.nan]), 1), (1, np.array([np.nan]))):
        with pytest.raises(AssertionError, match=r"^lower is not below upper in 1 of "):
            assert_less(lower, upper, or_equal=lower is not A)


def test_assertions__treat_numpy_readonly_as_numpy() -> None:
    """The read-only arrays of the kit count as arrays of NumPy."""
    x = xbridge.to_backend(A, "numpy_readonly")
    assert_same(x, A)
    assert_close(A, x)
