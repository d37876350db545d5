"""A file is recognized by its content: a wrong name is named as such, and none is needed."""

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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["data", "data.bin"])
def test_format_of__file_whose_name_says_nothing_is_read_by_its_content(
    kind: str, name: str, tmp_path: Path, cli: Cli
) -> None:
    """A file whose name says nothing is read by its content."""
    write(tmp_path / name, kind)
    cli.run("convert", tmp_path / name, tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as arrays:
        assert [array.tolist() for array in arrays.values()] == [A.tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_format_of__wrong_name_is_named_as_such(kind: str, tmp_path: Path, cli: Cli) -> None:
    """A wrong name is named as such."""
    name = "x.npy" if kind != "npy" else "x.pth"
    write(tmp_path / name, kind)
    for call in (["convert", tmp_path / name, tmp_path / "y.npz"], ["show", tmp_path / name]):
        said = cli.refused(*call)
        assert f"its name ends in {name[1:]}, and its content is that of a .{KINDS[kind]} file" in said


@pytest.mark.parametrize("content", [b"PK\3\4 and no archive", b"\x93NUMPX", b"", b"12345678["])
def test_format_of__file_that_no_format_begins_like_is_read_by_its_name(
    content: bytes, tmp_path: Path, cli: Cli
) -> None:
    """A file that no format begins like is read by its name."""
    for name in ("x.npz", "x.npy", "x.safetensors"):
        (tmp_path / name).write_bytes(content)
        assert f"cannot read {tmp_path / name}" in cli.refused("show", tmp_path / name)
    (tmp_path / "x").write_bytes(content or b"1")
    assert "it does not begin like a file of npy, npz, " in cli.refused("show", tmp_path / "x")


def test_format_of__cast_of_a_dtype_that_no_array_has_is_refused(tmp_path: Path, cli: Cli) -> None:
    """A cast of a dtype that no array has is refused."""
    np.savez(tmp_path / "x.npz", a=A, b=np.ones(2, "i4"))
    call = ["convert", tmp_path / "x.npz", tmp_path / "y.npz", "--cast", "float32=float64"]
    assert "cannot cast float32: no array has that dtype, only float64, int32" in cli.refused(*call)
    call = ["convert", tmp_path / "x.npz", tmp_path / "y.npz", "--array", "b", "--cast", "float64=float32"]
    assert "only int32" in cli.refused(*call)
