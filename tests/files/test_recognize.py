"""The suffix of a file is its format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

torch = pytest.importorskip("torch")
save_safetensors = pytest.importorskip("safetensors.numpy").save_file

if TYPE_CHECKING:
    from pathlib import Path

    from shell import Cli

A = np.arange(3.0)


def write(path: Path, kind: str) -> None:
    """Write one array by the library of a format, under any name."""
    with path.open("wb") as file:
        if kind == "npy":
            np.save(file, A)
        elif kind == "npz":
            np.savez(file, a=A)
        elif kind == "safetensors":
            save_safetensors({"a": A}, path)
        else:
            torch.save({"a": torch.tensor(A)}, file, _use_new_zipfile_serialization=kind == "pt")


KINDS = {"npy": "npy", "npz": "npz", "safetensors": "safetensors", "pt": "pt", "old pt": "pt"}


@pytest.mark.parametrize("kind", ["pt", "old pt"])
@pytest.mark.parametrize("name", ["data.bin", "last.ckpt", "model.PTH.tar"])
def test_format_of__checkpoint_is_read_under_its_other_names(
    kind: str, name: str, tmp_path: Path, cli: Cli
) -> None:
    """A checkpoint is read under the other names that programs give it."""
    write(tmp_path / name, kind)
    cli.run("convert", tmp_path / name, tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as arrays:
        assert [array.tolist() for array in arrays.values()] == [A.tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_format_of__file_with_the_name_of_another_format_is_refused(
    kind: str, tmp_path: Path, cli: Cli
) -> None:
    """A file is read as its name says, and the library of that format refuses what it is not."""
    for name in {"x.npy", "x.npz", "x.safetensors", "x.pth"} - {f"x.{KINDS[kind].replace('pt', 'pth')}"}:
        write(tmp_path / name, kind)
        for call in (["convert", tmp_path / name, tmp_path / "y.npz"], ["show", tmp_path / name]):
            assert f"cannot read {tmp_path / name}" in cli.refused(*call)


def test_format_of__name_without_a_suffix_is_refused(tmp_path: Path, cli: Cli) -> None:
    """Without a suffix, the message lists those that are read."""
    write(tmp_path / "x", "npy")
    assert "its name has no suffix, and those of the formats are .npy, .npz, " in cli.refused(
        "show", tmp_path / "x"
    )


def test_format_of__cast_of_a_dtype_that_no_array_has_is_refused(tmp_path: Path, cli: Cli) -> None:
    """A cast of a dtype that no array has is refused."""
    np.savez(tmp_path / "x.npz", a=A, b=np.ones(2, "i4"))
    call = ["convert", tmp_path / "x.npz", tmp_path / "y.npz", "--cast", "float32=float64"]
    assert "cannot cast float32: no array has that dtype, only float64, int32" in cli.refused(*call)
    call = ["convert", tmp_path / "x.npz", tmp_path / "y.npz", "--array", "b", "--cast", "float64=float32"]
    assert "only int32" in cli.refused(*call)
