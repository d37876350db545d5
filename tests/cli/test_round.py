"""`--round`: a cast to the nearest values, by exact arithmetic; and what stays refused."""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shell import listing, refused, shell

from xbridge._cli.formats.stored import rounded
from xbridge._host.memory import native_dtype

pytest.importorskip("ml_dtypes")

if TYPE_CHECKING:
    from pathlib import Path

    from xbridge._core.protocol import HostArray

NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32")


def every(dtype: str) -> list[tuple[Fraction, int]]:
    """The finite values of a small dtype, each with its bits without the sign."""
    code = np.dtype(f"u{native_dtype(dtype).itemsize}")
    bits = np.arange(1 << 8 * code.itemsize - 1, dtype=code)
    with np.errstate(invalid="ignore"):  # NaNs
        values = bits.view(native_dtype(dtype)).astype(np.float64)
    pairs = zip(values.tolist(), bits.tolist(), strict=True)
    return [(Fraction(value), bit) for value, bit in pairs if np.isfinite(value)]


TABLES = {dtype: every(dtype) for dtype in NARROW if native_dtype(dtype).itemsize < 4}


def nearest(x: float, dtype: str) -> float | None:
    """The nearest value of a dtype, of two the one with an even last bit; None beyond its largest."""
    if dtype == "float32":
        try:
            single: float = struct.unpack("<f", struct.pack("<f", x))[0]  # Python's own cast
        except OverflowError:
            return None
        return single
    table, size = TABLES[dtype], abs(Fraction(x))
    values = [value for value, _ in table]
    last = values[-1] - values[-2]
    if size >= values[-1] + last / 2:
        return None
    low, high = 0, len(table)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if values[middle] <= size else (low, middle)
    around = table[low : low + 2]
    value, _ = min(around, key=lambda pair: (abs(pair[0] - size), pair[1] % 2))
    return float(value) * (-1 if x < 0 else 1)


@pytest.mark.parametrize("dtype", NARROW)
@given(x=st.floats(allow_nan=False, allow_infinity=False) | st.floats(-500, 500))
@example(x=1 + 2**-8 + 2**-30)  # float32 would be halfway between two of bfloat16
@example(x=-(1 + 2**-8 + 2**-30))
@example(x=1 + 2**-4 + 2**-40)
@example(x=1e-40)
@example(x=1e300)
def test_a_float_becomes_the_nearest_one_and_never_infinite(dtype: str, x: float) -> None:
    with np.errstate(all="ignore"):
        cast, kept = rounded(np.array([x]), native_dtype(dtype))
    expected = nearest(x, dtype)
    assert kept.tolist() == [expected is not None]
    if expected is not None:
        assert float(cast[0]) == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@given(n=st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-70_000, 70_000))
@example(n=2**53 + 1)
def test_an_integer_becomes_the_nearest_float_if_float64_has_it(dtype: str, n: int) -> None:
    with np.errstate(all="ignore"):
        cast, kept = rounded(np.array([n]), native_dtype(dtype))
    expected = nearest(float(n), dtype) if int(float(n)) == n else None
    assert kept.tolist() == [expected is not None]
    if expected is not None:
        assert float(cast[0]) == expected


@pytest.mark.parametrize(
    ("values", "cast", "rounds_to"),
    [
        (np.array([0.1, np.nan, -0.0, np.inf]), "float64=float32", [np.float32(0.1), np.nan, -0.0, np.inf]),
        (np.array([0.5, 1.5, 2.5, -0.4]), "float64=int8", [0, 2, 2, 0]),
        (np.array([0.5, 1.5], "f2"), "float16=uint8", [0, 2]),
        (np.array([2**53 + 1]), "int64=float64", [2**53]),
        (np.array([0.1 + 0.2j]), "complex128=complex64", [np.complex64(0.1 + 0.2j)]),
        (np.array([True, False]), "bool=float16", [1, 0]),
        (np.array([3]), "int64=int8", [3]),
    ],
)
def test_a_cast_rounds_if_that_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: HostArray, cast: str, rounds_to: list[float]
) -> None:
    np.save(tmp_path / "a.npy", values)
    shell(capsys, "convert", tmp_path / "a.npy", tmp_path / "b.npy", "--cast", cast, "--round")
    found = np.load(tmp_path / "b.npy")
    assert str(found.dtype) == cast.partition("=")[2]
    assert str(found.tolist()) == str(np.array(rounds_to, found.dtype).tolist())


@pytest.mark.parametrize(
    ("values", "cast", "lost"),
    [
        (np.array([1e300]), "float64=float32", "the value 1e+300 would become inf"),
        (np.array([128.0]), "float64=int8", "the value 128.0 would become "),
        (np.array([127.5]), "float64=int8", "the value 127.5 would become "),
        (np.array([-0.6]), "float64=uint8", "the value -0.6 would become "),
        (np.array([np.nan]), "float64=int64", "the value nan would become "),
        (np.array([300]), "int64=uint8", "the value 300 would become 44"),
        (np.array([2.0]), "float64=bool", "the value 2.0 would become True"),
        (np.array([1e5]), "float64=float16", "the value 100000.0 would become inf"),
    ],
)
def test_a_value_that_a_dtype_has_no_neighbour_for_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: HostArray, cast: str, lost: str
) -> None:
    np.save(tmp_path / "a.npy", values)
    said = refused(capsys, "convert", tmp_path / "a.npy", tmp_path / "b.npy", "--cast", cast, "--round")
    assert lost in said
    assert said.endswith("; try a dtype that has all of its values\n")
    assert listing(tmp_path) == {"a.npy"}


def test_rounding_is_named_where_it_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", np.array([0.1, 1e300]))
    words = ("convert", tmp_path / "a.npy", tmp_path / "b.npy")
    assert refused(capsys, *words, "--cast", "float64=float32").endswith(", or --round\n")
    assert refused(capsys, *words, "--cast", "float64=float16", "--round").endswith("all of its values\n")
    said = refused(capsys, *words, "--round")
    assert "cannot round: there is no --cast; try --cast float64=float32 --round" in said
