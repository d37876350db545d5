"""Bad files: truncated, damaged, hostile, or holding what is no array. One line, and nothing is written."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from shell import listing, refused, shell

pytest.importorskip("ml_dtypes")
save_safetensors = pytest.importorskip("safetensors.numpy").save_file

if TYPE_CHECKING:
    from collections.abc import Callable


class Evil:
    """A pickle that runs what it likes when it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("owned",)


def save_pt(thing: object, path: Path, **options: Any) -> None:
    import torch

    torch.save(thing, path, **options)


def good(path: Path) -> None:
    """A file that can be read."""
    arrays = {"a": np.arange(100.0), "b": np.ones((3, 4), "float32")}
    if path.suffix == ".npy":
        np.save(path, arrays["a"])
    elif path.suffix == ".npz":
        np.savez(path, **arrays)  # type: ignore[arg-type] # any name
    elif path.suffix == ".safetensors":
        save_safetensors(arrays, path)
    else:
        torch = pytest.importorskip("torch")
        save_pt({name: torch.from_numpy(x) for name, x in arrays.items()}, path)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".pt"])
def test_a_truncated_file_is_refused_wherever_it_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    whole, cut = tmp_path / f"whole{suffix}", tmp_path / f"cut{suffix}"
    good(whole)
    there = tmp_path / "there.npz"
    content = whole.read_bytes()
    for size in (1, 5, 9, 60, len(content) // 2, len(content) - 30, len(content) - 1):
        cut.write_bytes(content[:size])
        assert f"cannot read {cut}: " in refused(capsys, "convert", cut, there)
    cut.write_bytes(b"")
    assert f"cannot read {cut}: it is empty" in refused(capsys, "convert", cut, there)
    cut.write_bytes(b"no array at all, " * 50)
    assert f"cannot read {cut}: " in refused(capsys, "convert", cut, there)
    assert listing(tmp_path) == {whole.name, cut.name}


def test_a_file_that_shrinks_while_it_is_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from xbridge._cli._files import _npz

    good(tmp_path / "a.npy")
    written = _npz.write

    def cut_first(*arguments: Any) -> None:
        os.truncate(tmp_path / "a.npy", 500)
        written(*arguments)

    monkeypatch.setattr(_npz, "write", cut_first)
    said = refused(capsys, "convert", tmp_path / "a.npy", tmp_path / "b.npz")
    assert "it ends 428 bytes before the last value of " in said
    assert listing(tmp_path) == {"a.npy"}


@pytest.mark.parametrize("size", [100, 1_000_000])  # with the header it is read, and after it
def test_a_damaged_archive_is_seen_by_its_checksum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int
) -> None:
    np.savez(tmp_path / "a.npz", a=np.arange(float(size)))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(np.float64(7.0).tobytes())] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    for target in ("b.npz", "b.safetensors"):
        said = refused(capsys, "convert", tmp_path / "a.npz", tmp_path / target)
        assert "'a.npy': Bad CRC-32 for file 'a.npy'" in said
    assert listing(tmp_path) == {"a.npz"}


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_objects_are_refused_because_they_are_a_pickle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    array = np.array([Evil(), None])
    (np.save if suffix == ".npy" else np.savez)(f"a{suffix}", array)
    said = refused(capsys, "convert", f"a{suffix}", "b.npz")
    assert "it holds Python objects, as a pickle, which can run code when it is read" in said
    assert listing(tmp_path) == {f"a{suffix}"}


@pytest.mark.parametrize("old", [False, True])
def test_a_hostile_pickle_is_named_and_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, old: bool
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    save_pt({"a": Evil()}, Path("a.pt"), _use_new_zipfile_serialization=not old)
    said = refused(capsys, "convert", "a.pt", "b.npz")
    assert f"it asks for {os.mkdir.__module__}.mkdir, which is no tensor and could run code" in said
    Path("a.pt").write_bytes(b"junk" * 100)
    assert "cannot read a.pt: KeyError(" in refused(capsys, "convert", "a.pt", "b.npz")
    Path("a.pt").write_bytes(pickle.dumps(Evil()))
    refused(capsys, "convert", "a.pt", "b.npz")
    assert listing(tmp_path) == {"a.pt"}


def _alias() -> object:
    import torch

    whole = torch.arange(6.0)
    return {"c": torch.ones(2), "a": whole, "b": whole[4:]}


PT: dict[str, tuple[Callable[[Any], object], str]] = {
    "a dict in a dict": (lambda torch: {"a": {"b": torch.ones(2)}}, "'a' is of type dict, and no tensor"),
    "a number": (lambda torch: {"w": torch.ones(2), "epoch": 3}, "'epoch' is of type int, and no tensor"),
    "a list": (lambda torch: [torch.ones(2)], "it holds a list"),
    "a number for a name": (lambda torch: {1: torch.ones(2)}, "the name 1 is no string"),
    "None for a name": (lambda torch: {None: torch.ones(2)}, "the name None is no string"),
    "shared memory": (lambda _: _alias(), "'a' and 'b' share memory, and would be two arrays"),
    "sparse": (
        lambda torch: {"s": torch.eye(2).to_sparse()},
        "'s': cannot convert a torch float32 array of ",
    ),
    "meta": (
        lambda torch: {"m": torch.ones(2, device="meta")},
        "'m': cannot convert a torch float32 array of ",
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("what", PT)
def test_what_is_no_flat_dict_of_plain_tensors_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    torch = pytest.importorskip("torch")
    make, said = PT[what]
    save_pt(make(torch), tmp_path / "a.pt")
    assert said in refused(capsys, "convert", tmp_path / "a.pt", tmp_path / "b.pt")
    assert listing(tmp_path) == {"a.pt"}


def test_parts_of_one_memory_that_do_not_overlap_are_arrays_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    whole = torch.arange(6.0)
    turns = torch.arange(6.0)
    parts = {"a": whole[:3], "b": whole[3:], "even": turns[::2], "odd": turns[1::2], "none": whole[:0]}
    save_pt({**parts, "none too": whole[:0]}, tmp_path / "a.pt")
    shell(capsys, "convert", tmp_path / "a.pt", tmp_path / "b.npz", "--relayout")
    with np.load(tmp_path / "b.npz") as found:
        assert {name: x.tolist() for name, x in found.items()} == {
            "a": [0, 1, 2],
            "b": [3, 4, 5],
            "even": [0, 2, 4],
            "odd": [1, 3, 5],
            "none": [],
            "none too": [],
        }


@pytest.mark.parametrize("how", ["old", "deflated"])
def test_what_torch_cannot_map_it_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str) -> None:
    torch = pytest.importorskip("torch")
    save_pt({"a": torch.arange(1000.0)}, tmp_path / "a.pt", _use_new_zipfile_serialization=how != "old")
    if how == "deflated":
        with zipfile.ZipFile(tmp_path / "a.pt") as stored:
            members = {name: stored.read(name) for name in stored.namelist()}
        with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as packed:
            for name, content in members.items():
                packed.writestr(name, content)
    shell(capsys, "convert", tmp_path / "a.pt", tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as found:
        assert found["a"].tolist() == list(range(1000))


def test_a_tensor_alone_has_no_name_and_may_lie_in_any_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)
    save_pt(tensor.requires_grad_(), tmp_path / "a.pt")
    shell(capsys, "convert", tmp_path / "a.pt", tmp_path / "b.pt")
    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert (found.stride(), found.tolist()) == (tensor.stride(), tensor.tolist())
    said = refused(capsys, "convert", tmp_path / "a.pt", tmp_path / "b.npy")
    assert "the array has its axes in another order than C; try --relayout" in said
    shell(capsys, "convert", tmp_path / "a.pt", tmp_path / "b.npy", "--relayout")
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), tensor.detach().numpy())
    shell(capsys, "convert", tmp_path / "a.pt", tmp_path / "half.pt", "--cast", "float32=float16")
    assert torch.load(tmp_path / "half.pt", weights_only=True).tolist() == tensor.tolist()


def test_a_transposed_tensor_is_in_fortran_order_where_that_can_be_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    save_pt(torch.arange(6.0).reshape(2, 3).T, tmp_path / "a.pt")
    shell(capsys, "convert", tmp_path / "a.pt", tmp_path / "b.npy")
    found = np.load(tmp_path / "b.npy")
    assert (found.tolist(), found.flags.f_contiguous) == ([[0, 3], [1, 4], [2, 5]], True)


def test_torch_refuses_dtypes_that_it_has_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    np.savez(tmp_path / "a.npz", when=np.zeros(2, "M8[s]"))
    said = refused(capsys, "convert", tmp_path / "a.npz", tmp_path / "a.pt")
    assert "'when' is datetime64[s], and torch has no such dtype; try a .npz file" in said


def npy(descr: str, shape: tuple[int, ...], values: bytes, version: int = 1) -> bytes:
    """A `.npy` file that says so of itself."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    header = file.getvalue()
    return header[:6] + bytes([version]) + header[7:] + values


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (npy("<f8", (2,), bytes(24)), "8 bytes follow its array, perhaps another array; try numpy.load on "),
        (npy("<f8", (1 << 60,), bytes(8)), "only 8 of the 9223372036854775808 bytes of its values are there"),
        (npy("<f8", (-1,), b""), "there is no float64 array of shape (-1,)"),
        (npy("|S0", (2,), b""), "there is no |S0 array of shape (2,)"),
        (npy("<f8", (1,), bytes(8), version=3), "no header of version (3, 0) is read here; try numpy.load"),
        (npy("<f8", (1,), bytes(8), version=9), "no header of version (9, 0) is read here; try numpy.load"),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': [[[[[['}", "EOF in multi-line statement"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "its header has 4294967295 bytes, and NumPy reads 10000"),
    ],
)
def test_a_header_that_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, why: str
) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    assert why in refused(capsys, "convert", tmp_path / "a.npy", tmp_path / "b.npz")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", content)
    refused(capsys, "convert", tmp_path / "a.npz", tmp_path / "b.npz")
    assert listing(tmp_path) == {"a.npy", "a.npz"}


def test_a_header_that_is_a_bomb_is_not_unpacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 32 << 20) + bytes(32 << 20))
    tracemalloc.start()
    said = refused(capsys, "convert", path, tmp_path / "b.npz")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "its header has 33554432 bytes" in said
    assert most < 4 << 20


def test_a_header_of_the_second_version_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, np.arange(3.0), version=(2, 0))
    shell(capsys, "convert", tmp_path / "a.npy", tmp_path / "b.npy")
    assert np.load(tmp_path / "b.npy").tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_an_archive_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "no array")
    assert "its member 'readme.txt' is no array" in refused(capsys, "convert", path, tmp_path / "b.npz")
    with zipfile.ZipFile(path, "w") as archive:
        for _ in range(2):
            archive.writestr("x.npy", npy("<f8", (1,), bytes(8)))
    assert "it has 2 members named 'x.npy'" in refused(capsys, "convert", path, tmp_path / "b.npz")


def safetensors(header: bytes, values: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + values


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            safetensors(b'{"x":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}', bytes(1)),
            "the dtype F4 of 'x'",
        ),
        (safetensors(b'{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}}', bytes(1)), "Error while "),
        (safetensors(b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', bytes(2)), "Error while "),
        (safetensors(b"{", b""), "Error while deserializing header"),
        (struct.pack("<Q", 1 << 60), "Error while deserializing header"),
    ],
)
def test_a_safetensors_file_that_the_library_refuses_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, why: str
) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    assert why in refused(capsys, "convert", tmp_path / "a.safetensors", tmp_path / "b.npz")
