"""`--round`: a cast to the nearest values; and what stays refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from shell import listing, refused, shell

pytest.importorskip("ml_dtypes")

if TYPE_CHECKING:
    from pathlib import Path

    from xbridge.protocol import HostArray


@pytest.mark.parametrize(
    ("values", "cast", "rounds_to"),
    [
        (np.array([0.1, np.nan, -0.0, np.inf]), "float64=float32", [np.float32(0.1), np.nan, -0.0, np.inf]),
        (np.array([0.5, 1.5, 2.5, -0.4]), "float64=int8", [0, 2, 2, 0]),
        (np.array([0.5, 1.5], "f2"), "float16=uint8", [0, 2]),
        (np.array([2**53 + 1]), "int64=float64", [2**53]),
        (np.array([0.1 + np.nan * 1j]), "complex128=complex64", [np.complex64(0.1 + np.nan * 1j)]),
        (np.array([0.1 + 0.2j]), "complex128=complex64", [np.complex64(0.1 + 0.2j)]),
        (np.array([True, False]), "bool=float16", [1, 0]),
        (np.array([3]), "int64=int8", [3]),
    ],
)
def test_convert__cast_rounds_if_that_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: HostArray, cast: str, rounds_to: list[float]
) -> None:
    """A cast rounds if that is allowed."""
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
def test_convert__value_that_a_dtype_has_no_neighbour_for_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: HostArray, cast: str, lost: str
) -> None:
    """A value that a dtype has no neighbour for is refused."""
    np.save(tmp_path / "a.npy", values)
    said = refused(capsys, "convert", tmp_path / "a.npy", tmp_path / "b.npy", "--cast", cast, "--round")
    assert lost in said
    assert said.endswith("; try a dtype that has all of its values\n")
    assert listing(tmp_path) == {"a.npy"}


def test_convert__rounding_is_named_where_it_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rounding is named where it helps."""
    np.save(tmp_path / "a.npy", np.array([0.1, 1e300]))
    words = ("convert", tmp_path / "a.npy", tmp_path / "b.npy")
    assert refused(capsys, *words, "--cast", "float64=float32").endswith(", or --round\n")
    assert refused(capsys, *words, "--cast", "float64=float16", "--round").endswith("all of its values\n")
    said = refused(capsys, *words, "--round")
    assert "cannot round: there is no --cast; try --cast float64=float32 --round" in said
