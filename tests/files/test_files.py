"""Bad files: truncated, damaged, hostile, or holding what is no array. One line, and nothing is written."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fresh import run
from shell import listing, refused, shell

from xbridge.files import main

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
def test_convert__truncated_file_is_refused_wherever_it_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    """A truncated file is refused wherever it ends."""
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


def test_convert__file_that_shrinks_while_it_is_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that shrinks while it is read is refused."""
    from xbridge.files.formats import npz

    good(tmp_path / "a.npy")
    written = npz.write

    def cut_first(*arguments: Any) -> None:
        os.truncate(tmp_path / "a.npy", 500)
        written(*arguments)

    monkeypatch.setattr(npz, "write", cut_first)
    said = refused(capsys, "convert", tmp_path / "a.npy", tmp_path / "b.npz")
    assert "it ends 428 bytes before the last value of " in said
    assert listing(tmp_path) == {"a.npy"}


@pytest.mark.parametrize("size", [100, 1_000_000])  # with the header it is read, and after it
def test_convert__damaged_archive_is_seen_by_its_checksum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int
) -> None:
    """A damaged archive is seen by its checksum."""
    np.savez(tmp_path / "a.npz", a=np.arange(float(size)))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(np.float64(7.0).tobytes())] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    for target in ("b.npz", "b.safetensors"):
        said = refused(capsys, "convert", tmp_path / "a.npz", tmp_path / target)
        assert "'a.npy': Bad CRC-32 for file 'a.npy'" in said
    assert listing(tmp_path) == {"a.npz"}


def tensors() -> dict[str, Any]:
    """Whole records, parts of one record, and tensors that walk through a record in another order."""
    import torch

    base = torch.arange(40.0)
    return {
        "w": torch.arange(6.0) + 0.5,
        "turned": torch.arange(6).reshape(2, 3).T,
        "part": base[:20],
        "steps": base[20::2],
        "none": torch.ones(0),
    }


def flipped(path: Path, at: int, bit: int = 0) -> Path:
    """A copy of a file in which one bit is another."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    damaged = path.with_name(f"damaged{path.suffix}")
    damaged.write_bytes(content)
    return damaged


def places(path: Path, member: str) -> dict[str, int]:
    """Where in an archive the parts of a member are, from the specification of the format."""
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith(member)).encode()
        local = archive.getinfo(name.decode()).header_offset
    entry = content.index(b"PK\1\2", content.rindex(b"PK\1\2", 0, content.rindex(name)))
    (of_name, of_extra) = struct.unpack_from("<HH", content, local + 26)
    return {
        "values": local + 30 + of_name + of_extra + 3,
        "signature in its header": local,
        "method in its header": local + 8,
        "length of the name in its header": local + 26,
        "length of the rest of its header": local + 28,
        "name in its header": local + 30,
        "checksum in the directory": entry + 16,
        "size in the directory": entry + 24,
        "length of the name in the directory": entry + 28,
        "length of the comment in the directory": entry + 32,
        "place in the directory": entry + 42,
        "name in the directory": entry + 46,
    }


PARTS = ("w", "turned", "part", "steps")


@pytest.mark.parametrize("target", ["there.npz", "there.safetensors", "there.pt", "there.npy"])
@pytest.mark.parametrize("part", PARTS)
def test_convert__torch_file_with_one_wrong_bit_in_a_tensor_is_refused_by_the_name_of_the_tensor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, target: str
) -> None:
    """A torch file with one wrong bit in a tensor is refused by the name of the tensor."""
    torch = pytest.importorskip("torch")
    save_pt(tensors(), tmp_path / "a.pt")
    record = {"w": tensors()["w"], "turned": torch.arange(6)}.get(part, torch.arange(40.0))
    at = (tmp_path / "a.pt").read_bytes().index(record.numpy().tobytes())
    damaged = flipped(tmp_path / "a.pt", at + 1)
    options = ["--array", part] if target.endswith(".npy") else []
    said = refused(capsys, "convert", damaged, tmp_path / target, "--relayout", *options)
    name = "part" if part == "steps" and not options else part  # they are of one record
    assert f"cannot read {damaged}: the checksum of {name!r} differs: its values are damaged" in said
    assert listing(tmp_path) == {"a.pt", "damaged.pt"}


ZIP_PARTS = (
    "values",
    "signature in its header",
    "length of the name in its header",
    "length of the rest of its header",
    "name in its header",
    "checksum in the directory",
    "size in the directory",
    "length of the name in the directory",
    "length of the comment in the directory",
    "place in the directory",
    "name in the directory",
)


@pytest.mark.parametrize("what", ZIP_PARTS)
@pytest.mark.parametrize(("suffix", "member"), [(".pt", "data/0"), (".pt", "data.pkl"), (".npz", "a.npy")])
def test_convert__archive_with_one_wrong_bit_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str, member: str, what: str
) -> None:
    """An archive with one wrong bit is refused and nothing is written."""
    whole = tmp_path / f"whole{suffix}"
    good(whole)
    damaged = flipped(whole, places(whole, member)[what])
    for target in ("there.npz", "there.safetensors"):
        assert f"cannot read {damaged}: " in refused(capsys, "convert", damaged, tmp_path / target)
    assert listing(tmp_path) == {whole.name, damaged.name}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".pt", ".npz", " compressed.npz"])
def test_convert__whichever_bit_of_an_archive_is_wrong_the_values_are_right_or_the_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    """Whichever bit of an archive is wrong, the values are right or the file is refused."""
    pytest.importorskip("torch")
    whole, there = tmp_path / f"a{suffix}", tmp_path / "there.npz"
    if suffix == ".pt":
        save_pt(tensors(), whole)
    else:
        save = np.savez if suffix == ".npz" else np.savez_compressed
        save(whole, **{name: x.numpy() for name, x in tensors().items()})
    expected = {name: x.tolist() for name, x in tensors().items()}
    generator = np.random.default_rng(3)
    for at, bit in zip(
        generator.integers(0, whole.stat().st_size, 150), generator.integers(0, 8, 150), strict=True
    ):
        status = main(["convert", str(flipped(whole, at, bit)), str(there), "--relayout"])
        said = capsys.readouterr().err
        assert (status, there.exists()) in ((0, True), (2, False)), said
        if there.exists():
            with np.load(there) as found:
                assert {name: x.tolist() for name, x in found.items()} == expected
            there.unlink()
        else:
            assert said.startswith("xbridge-array: cannot read ")


def test_convert__checksum_is_compared_in_the_pass_that_writes_the_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checksum is compared in the pass that writes the values."""
    torch = pytest.importorskip("torch")
    from xbridge.files.formats import pt, stored

    whole = {"a": torch.arange(1000.0), "b": torch.arange(600).reshape(20, 30).T}
    save_pt({**whole, "part": torch.arange(100.0)[:40]}, tmp_path / "a.pt")
    sizes: list[int] = []

    def crc32(data: Any, before: int = 0) -> int:
        sizes.append(memoryview(data).nbytes)
        return zlib.crc32(data, before)

    monkeypatch.setattr(pt, "zlib", SimpleNamespace(crc32=crc32))
    monkeypatch.setattr(stored, "BLOCK", 800)
    monkeypatch.setattr(pt, "BLOCK", 800)
    shell(capsys, "convert", tmp_path / "a.pt", tmp_path / "b.npz")
    assert sizes == [800] * 5 + [800] * 6 + [400]  # as they are written, and the record of a part


def without_checksums(path: Path) -> None:
    """Take the checksums out of the directory of an archive, as torch writes it when it is told to."""
    content = bytearray(path.read_bytes())
    entry = content.find(b"PK\1\2")
    while entry >= 0:
        content[entry + 16 : entry + 20] = bytes(4)
        entry = content.find(b"PK\1\2", entry + 46)
    path.write_bytes(content)


@pytest.mark.parametrize("by", ["torch", "hand"])
def test_convert__torch_file_without_checksums_is_read_only_if_that_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    """A torch file without checksums is read only if that is allowed."""
    torch = pytest.importorskip("torch")
    path, there = tmp_path / "a.pt", tmp_path / "b.npz"
    if by == "torch" and not hasattr(torch.serialization, "set_crc32_options"):
        pytest.skip("this torch always writes them")
    if by == "torch":
        torch.serialization.set_crc32_options(False)
    try:
        save_pt(tensors(), path)
    finally:
        if by == "torch":
            torch.serialization.set_crc32_options(True)
    if by == "hand":
        without_checksums(path)
    said = refused(capsys, "convert", path, there, "--relayout")
    assert f"cannot read {path}: torch wrote it without checksums, so " in said
    assert said.endswith("; try --no-checksum\n")
    assert listing(tmp_path) == {"a.pt"}
    assert "torch float32 (6,) on cpu" in shell(capsys, "explain", path, "--to", "numpy", "--array", "w")
    shell(capsys, "convert", path, there, "--relayout", "--no-checksum")
    with np.load(there) as found:
        assert {name: x.tolist() for name, x in found.items()} == {
            name: x.tolist() for name, x in tensors().items()
        }


def test_convert__checksums_that_a_file_has_are_compared_whatever_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checksums that a file has are compared whatever is allowed."""
    pytest.importorskip("torch")
    good(tmp_path / "a.pt")
    damaged = flipped(tmp_path / "a.pt", places(tmp_path / "a.pt", "data/1")["values"])
    said = refused(capsys, "convert", damaged, tmp_path / "b.npz", "--no-checksum")
    assert "the checksum of 'b' differs" in said


def repacked(path: Path, compression: int, changed: dict[str, bytes]) -> None:
    """Write an archive anew, with other content for the members that end so."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            ours = next((new for end, new in changed.items() if name.endswith(end)), content)
            archive.writestr(name, ours)


@pytest.mark.parametrize("how", ["compressed", "of another machine"])
def test_convert__what_torch_changes_in_memory_is_compared_as_it_is_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """What torch changes in memory is compared as it is in the file."""
    torch = pytest.importorskip("torch")
    # Random bytes do not compress. A bit flipped in a compressed run can leave every value as it is.
    path, values = tmp_path / "a.pt", np.frombuffer(np.random.default_rng(0).bytes(800), np.int64)
    save_pt({"a": torch.from_numpy(values.copy())}, path)
    if how == "compressed":
        repacked(path, zipfile.ZIP_DEFLATED, {})
    else:
        repacked(path, zipfile.ZIP_STORED, {"/byteorder": b"big", "/data/0": values.astype(">i8").tobytes()})
    shell(capsys, "convert", path, tmp_path / "b.npy", "--array", "a")
    assert np.load(tmp_path / "b.npy").tolist() == values.tolist()
    damaged = flipped(path, places(path, "data/0")["values"] + 40)
    refused(capsys, "convert", damaged, tmp_path / "c.npz")
    assert listing(tmp_path) == {"a.pt", "b.npy", "damaged.pt"}


def test_explain__reads_no_value_and_no_damaged_pickle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`explain` reads no value and no damaged pickle."""
    pytest.importorskip("torch")
    good(tmp_path / "a.pt")
    values = flipped(tmp_path / "a.pt", places(tmp_path / "a.pt", "data/0")["values"])
    assert "torch float64 (100,) on cpu" in shell(capsys, "explain", values, "--to", "numpy")
    described = flipped(tmp_path / "a.pt", places(tmp_path / "a.pt", "data.pkl")["values"])
    assert "Bad CRC-32 for file " in refused(capsys, "explain", described, "--to", "numpy")


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_convert__objects_are_refused_because_they_are_a_pickle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Objects are refused because they are a pickle."""
    monkeypatch.chdir(tmp_path)
    array = np.array([Evil(), None])
    (np.save if suffix == ".npy" else np.savez)(f"a{suffix}", array)
    said = refused(capsys, "convert", f"a{suffix}", "b.npz")
    assert "it holds Python objects, as a pickle, which can run code when it is read" in said
    assert listing(tmp_path) == {f"a{suffix}"}


@pytest.mark.parametrize("old", [False, True])
def test_convert__hostile_pickle_is_named_and_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, old: bool
) -> None:
    """A hostile pickle is named and not run."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    save_pt({"a": Evil()}, Path("a.pt"), _use_new_zipfile_serialization=not old)
    said = refused(capsys, "convert", "a.pt", "b.npz")
    assert f"it asks for {os.mkdir.__module__}.mkdir, which is not a tensor and could run code" in said
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
    "a dict in a dict": (
        lambda torch: {"a": {"b": torch.ones(2)}},
        "'a' is of type dict, which is not a tensor",
    ),
    "a number": (
        lambda torch: {"w": torch.ones(2), "epoch": 3},
        "'epoch' is int 3, not a tensor; try --skip-other, which leaves it out",
    ),
    "a list": (lambda torch: [torch.ones(2)], "its content is a list; try --flatten"),
    "a number for a name": (lambda torch: {1: torch.ones(2)}, "the name 1 is not a string"),
    "None for a name": (lambda torch: {None: torch.ones(2)}, "the name None is not a string"),
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
def test_convert__file_that_is_not_a_flat_dict_of_plain_tensors_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """A file that is not a flat dict of plain tensors is refused by name."""
    torch = pytest.importorskip("torch")
    make, said = PT[what]
    save_pt(make(torch), tmp_path / "a.pt")
    assert said in refused(capsys, "convert", tmp_path / "a.pt", tmp_path / "b.pt")
    assert listing(tmp_path) == {"a.pt"}


def test_convert__parts_of_one_memory_that_do_not_overlap_are_arrays_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts of one memory that do not overlap are arrays of their own."""
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
def test_convert__what_torch_cannot_map_it_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """torch loads what it cannot map."""
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


@pytest.mark.parametrize("count", [1, 8])
def test_convert__file_of_old_torch_ends_after_its_last_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    """A file of torch before 1.6 with a repeated piece is refused, though it has no checksum."""
    torch = pytest.importorskip("torch")
    save_pt({"a": torch.arange(9)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    content = (tmp_path / "a.pt").read_bytes()
    at = len(content) - 40
    (tmp_path / "a.pt").write_bytes(content[:at] + content[at : at + count] + content[at:])
    said = refused(capsys, "convert", tmp_path / "a.pt", tmp_path / "b.npz")
    assert "more bytes follow its last value" in said
    assert listing(tmp_path) == {"a.pt"}


def test_convert__tensor_alone_has_no_name_and_may_be_in_any_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tensor alone has no name and may be in any order."""
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


def test_convert__transposed_tensor_is_in_fortran_order_where_that_can_be_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A transposed tensor is in Fortran order where that can be said."""
    torch = pytest.importorskip("torch")
    save_pt(torch.arange(6.0).reshape(2, 3).T, tmp_path / "a.pt")
    shell(capsys, "convert", tmp_path / "a.pt", tmp_path / "b.npy")
    found = np.load(tmp_path / "b.npy")
    assert (found.tolist(), found.flags.f_contiguous) == ([[0, 3], [1, 4], [2, 5]], True)


def test_convert__torch_refuses_dtypes_that_it_has_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch refuses dtypes that it lacks."""
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
    ("content", "reason"),
    [
        (npy("<f8", (2,), bytes(24)), "8 bytes follow its array, perhaps another array; try numpy.load on "),
        (npy("<f8", (1 << 59,), bytes(8)), "it has only 8 of the 4611686018427387904 bytes of its values"),
        (npy("<f8", (1 << 60,), bytes(8)), "array is too big"),
        (npy("<f8", (0, 1 << 60), b""), "array is too big"),
        (npy("<f8", (1,) * 65, bytes(8)), "maximum supported dimension for an ndarray is currently 64"),
        (npy("<f8", (True,), bytes(8)), "an integer is required"),
        (npy("<f8", (-1,), b""), "there is no float64 array of shape (-1,)"),
        (npy("|S0", (2,), b""), "there is no |S0 array of shape (2,)"),
        (npy("<f8", (1,), bytes(8), version=3), "its header has the unknown version (3, 0); try numpy.load"),
        (npy("<f8", (1,), bytes(8), version=9), "its header has the unknown version (9, 0); try numpy.load"),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': [[[[[['}", "EOF in multi-line statement"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "its header has 4294967295 bytes, and NumPy reads 10000"),
    ],
)
def test_convert__header_that_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, reason: str
) -> None:
    """A header that cannot be is refused."""
    (tmp_path / "a.npy").write_bytes(content)
    assert reason in refused(capsys, "convert", tmp_path / "a.npy", tmp_path / "b.npz")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", content)
    refused(capsys, "convert", tmp_path / "a.npz", tmp_path / "b.npz")
    assert listing(tmp_path) == {"a.npy", "a.npz"}


def test_convert__header_that_is_a_bomb_is_not_unpacked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A header that is a bomb is not unpacked."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 32 << 20) + bytes(32 << 20))
    tracemalloc.start()
    said = refused(capsys, "convert", path, tmp_path / "b.npz")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "its header has 33554432 bytes" in said
    assert most < 4 << 20


def test_convert__header_of_the_second_version_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A header of the second version is read."""
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, np.arange(3.0), version=(2, 0))
    shell(capsys, "convert", tmp_path / "a.npy", tmp_path / "b.npy")
    assert np.load(tmp_path / "b.npy").tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_convert__archive_of_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An archive of something else is refused."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "no array")
    assert "its member 'readme.txt' is not an array" in refused(capsys, "convert", path, tmp_path / "b.npz")
    with zipfile.ZipFile(path, "w") as archive:
        for _ in range(2):
            archive.writestr("x.npy", npy("<f8", (1,), bytes(8)))
    assert "it has 2 members named 'x.npy'" in refused(capsys, "convert", path, tmp_path / "b.npz")


def safetensors(header: bytes, values: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + values


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            safetensors(b'{"x":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}', bytes(1)),
            "the dtype F4 of 'x'",
        ),
        (safetensors(b'{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}}', bytes(1)), "Error while "),
        (safetensors(b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', bytes(2)), "Error while "),
        (
            safetensors(
                b'{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},'
                b'"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}',
                bytes(3),
            ),
            "Error while ",
        ),
        (
            safetensors(
                b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                b'"x":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}',
                bytes(1),
            ),
            "its header has 'x' twice",
        ),
        (safetensors(b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', bytes(2)), "Error while "),
        (safetensors(b"{", b""), "Error while deserializing header"),
        (struct.pack("<Q", 1 << 60), "Error while deserializing header"),
    ],
)
def test_convert__safetensors_file_that_the_library_refuses_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, reason: str
) -> None:
    """A safetensors file that the library refuses is refused."""
    (tmp_path / "a.safetensors").write_bytes(content)
    assert reason in refused(capsys, "convert", tmp_path / "a.safetensors", tmp_path / "b.npz")


@pytest.mark.slow
def test_convert__reads_no_values_of_another_member_after_a_flipped_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch finds values by the header of a member, in which no checksum covers a bit."""
    torch = pytest.importorskip("torch")
    values = {"a": [0.0, 1.0, 2.0, 3.0], "b": [9.0, 10.0, 11.0, 12.0]}
    torch.save({name: torch.tensor(x) for name, x in values.items()}, tmp_path / "a.pt")
    content = (tmp_path / "a.pt").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        first, second = (x.header_offset for x in archive.infolist() if "/data/" in x.filename)
    refusals = 0
    for at in (*range(first + 4, first + 30), second + 28, second + 29):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[at] ^= 1 << bit
            (tmp_path / "b.pt").write_bytes(damaged)
            status = main(["convert", str(tmp_path / "b.pt"), str(tmp_path / "b.npz"), "--force"])
            refusals += status == 2
            if status == 0:
                with np.load(tmp_path / "b.npz") as found:
                    assert {name: found[name].tolist() for name in found.files} == values
    assert refusals > 16 * 8
    capsys.readouterr()


@pytest.mark.parametrize(
    ("position", "fmt", "value", "said"),
    [
        (8, "<H", 8, "its directory and the header of 'a.npy' differ"),
        (14, "<I", 1, "its directory and the header of 'a.npy' differ"),
        (22, "<I", 1, "its directory and the header of 'a.npy' differ"),
        (28, "<H", 400, "verlap"),  # Python says it from 3.13 on
    ],
)
def test_show__compares_the_header_of_a_member_with_the_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], position: int, fmt: str, value: int, said: str
) -> None:
    """The method, the checksum, the sizes and the place of a member are in both."""
    np.savez(tmp_path / "a.npz", a=np.ones(2), b=np.ones(2))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    struct.pack_into(fmt, content, position, value)
    (tmp_path / "a.npz").write_bytes(content)
    assert said in refused(capsys, "show", tmp_path / "a.npz")


def test_convert__refuses_an_archive_whose_end_record_is_zeroed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The members are there, and the end says that there are none."""
    np.savez(tmp_path / "a.npz", a=np.ones(2))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[-18:] = bytes(18)
    (tmp_path / "a.npz").write_bytes(content)
    for words in (("show",), ("convert", tmp_path / "b.npz")):
        said = refused(capsys, words[0], tmp_path / "a.npz", *words[1:])
        assert " bytes are of no member; try another copy of the file" in said
    np.savez(tmp_path / "none.npz")
    shell(capsys, "convert", tmp_path / "none.npz", tmp_path / "c.npz")


@pytest.mark.parametrize("name", ["a.npz", "a.pt"])
def test_show__refuses_a_zip_version_of_the_future(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Python's own reader raises NotImplementedError."""
    np.savez(tmp_path / "a.npz", a=np.ones(2))
    content = (tmp_path / "a.npz").read_bytes()
    at = content.index(b"PK\1\2") + 6
    (tmp_path / name).write_bytes(content[:at] + b"\xff" + content[at + 1 :])
    assert "zip file version 25.5" in refused(capsys, "show", tmp_path / name)


@pytest.mark.parametrize("how", ["replaced", "restored", "written", "rewritten", "removed"])
@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.safetensors", "a.pt"])
def test_convert__refuses_a_source_that_changes_while_it_is_read(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    how: str,
) -> None:
    """A file with arrays of both would be the file of nobody."""
    from xbridge.files.formats import npz

    np.save(tmp_path / "a.npy", np.ones(100))
    source, other = tmp_path / name, tmp_path / f"other.{name}"
    if name != "a.npy":
        pytest.importorskip({"a.pt": "torch", "a.safetensors": "safetensors"}.get(name, "numpy"))
        shell(capsys, "convert", tmp_path / "a.npy", source)
    other.write_bytes(source.read_bytes())
    stat, write = source.stat(), npz.write

    def write_after(*arguments: Any) -> None:
        write(*arguments)
        if isinstance(arguments[0], io.BytesIO):
            return  # a trial of the names
        if how == "removed":
            source.unlink()
        elif how == "replaced":  # by a file of the same size and time
            os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            other.replace(source)
        elif how == "restored":  # after another file had its name
            kept = source.rename(tmp_path / "kept")
            other.replace(source)
            kept.replace(source)
        elif how == "rewritten":  # with other values of the same size, and the old time
            with source.open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"!")
            os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        else:
            os.utime(source, ns=(0, 0))

    monkeypatch.setattr(npz, "write", write_after)
    said = refused(capsys, "convert", source, tmp_path / "new.npz")
    assert f"cannot read {source}: it was replaced or written while it was read; try again" in said
    assert not (tmp_path / "new.npz").exists()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
@pytest.mark.parametrize("source", ["a.npz", "a.safetensors"])
def test_convert__opens_few_files_for_many_arrays(tmp_path: Path, source: str) -> None:
    """The arrays of a file are mapped together, and so are those that are unpacked or laid out anew."""
    pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    arrays = {f"x{i}": np.full((1 + i % 3, 2), i) for i in range(200)}
    if source == "a.npz":
        np.savez(tmp_path / source, **{name: np.asfortranarray(x) for name, x in arrays.items()})  # type: ignore[arg-type] # any name
    else:
        save_file(arrays, tmp_path / source)
    status, lines = run(
        f"""
        import resource
        import numpy, torch  # they open files of their own
        from xbridge.files import main
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        words = [{str(tmp_path / source)!r}, {str(tmp_path / "a.pt")!r}, "--relayout"]
        assert main(["convert", *words]) == 0
        assert main(["explain", words[0], "--to", "torch"]) == 0
        found = torch.load(words[1])
        print(*(int(x[0, 0]) for x in found.values()))
        """
    )
    assert status == 0, lines
    assert sorted(map(int, lines[-1].split())) == list(range(200))


@pytest.mark.parametrize("damaged", [b"(x,)", b"(-x)", b"f(2)"])
def test_show__header_that_numpy_cannot_read_is_described_without_its_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: bytes
) -> None:
    """A damaged header is the same message in each run, without the address of an object."""
    path = tmp_path / "a.npy"
    np.save(path, np.ones(2))
    path.write_bytes(path.read_bytes().replace(b"(2,)", damaged))
    said = refused(capsys, "show", path)
    assert said.endswith("a.npy: malformed node or string on line 1; try another copy of the file\n")
