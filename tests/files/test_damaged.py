"""Bad files: truncated, damaged, hostile, or holding what is no array. One line, and nothing is written."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tracemalloc
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from shell import Cli, listing

from xbridge.files import main
from xbridge.files.formats import npz

pytest.importorskip("ml_dtypes")
save_safetensors = pytest.importorskip("safetensors.numpy").save_file
torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Iterator


class Evil:
    """A pickle that runs what it likes when it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("owned",)


def tensors() -> dict[str, Any]:
    """Whole records, parts of one record, and tensors that walk through a record in another order."""
    base = torch.arange(40.0)
    return {
        "w": torch.arange(100.0) + 0.5,
        "turned": torch.arange(6).reshape(2, 3).T,
        "part": base[:20],
        "steps": base[20::2],
        "none": torch.ones(0),
    }


def good(path: Path) -> Path:
    """A file that can be read."""
    arrays = {name: np.ascontiguousarray(x) for name, x in tensors().items()}
    if path.suffix == ".npy":
        np.save(path, arrays["w"])
    elif path.suffix == ".npz":
        (np.savez_compressed if "packed" in path.name else np.savez)(path, **arrays)  # type: ignore[arg-type] # any name
    elif path.suffix == ".safetensors":
        save_safetensors(arrays, path)
    else:
        torch.save(tensors(), path, _use_new_zipfile_serialization="old" not in path.name)
    return path


def values(path: Path) -> dict[str, list[Any]]:
    with np.load(path) as found:
        return {name: x.tolist() for name, x in found.items()}


VALUES = {name: x.tolist() for name, x in tensors().items()}


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.safetensors", "a.pt", "old.pt"])
def test_convert__truncated_file_is_refused_wherever_it_ends(tmp_path: Path, cli: Cli, name: str) -> None:
    """A file that ends early, or has more bytes at its end or in its values, is refused."""
    whole = good(tmp_path / name)
    content = whole.read_bytes()
    sizes = (0, 1, 5, 9, 60, len(content) // 2, len(content) - 30, len(content) - 1)
    cuts = [content[:size] for size in sizes] + [b"no array at all, " * 50]
    if name not in ("a.npz", "a.pt"):  # an archive may have a comment
        cuts += [content + b"more", content[:-30] + content[-38:]]
    for cut in cuts:
        whole.write_bytes(cut)
        said = cli.refused("convert", whole, tmp_path / "there.npz")
        assert f"cannot read {whole}: {'' if cut else 'it is empty'}" in said
    assert listing(tmp_path) == {name}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("a.npz", ".pt"),
        ("a.safetensors", ".pt"),
        ("a.pt", ".safetensors"),
        ("hello", ".pt"),
        ("hello", ".json"),
    ],
)
def test_show__file_under_another_suffix_is_no_file_of_that_one(
    tmp_path: Path, cli: Cli, name: str, other: str
) -> None:
    """What the reader of a format says of a file of another one follows a sentence that names the format."""
    wrong = tmp_path / f"wrong{other}"
    if name == "hello":
        wrong.write_text("hello, this is text", encoding="utf-8")
    else:
        good(tmp_path / name).rename(wrong)
    assert f"cannot read {wrong}: it is no valid {other} file: " in cli.refused("show", wrong)


def test_convert__file_that_shrinks_while_it_is_read_is_refused(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that shrinks while it is read is refused."""
    source, written = good(tmp_path / "a.npy"), npz.write

    def cut_first(*arguments: Any) -> None:
        os.truncate(source, 300)
        written(*arguments)

    monkeypatch.setattr(npz, "write", cut_first)
    said = cli.refused("convert", source, tmp_path / "b.npz")
    assert "it ends 228 bytes before the last value of " in said
    assert listing(tmp_path) == {"a.npy"}


def parts(path: Path, member: str) -> Iterator[tuple[str, int]]:
    """Where in an archive the parts of a member are, from the specification of the format."""
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith(member)).encode()
        local = archive.getinfo(name.decode()).header_offset
    entry = content.index(b"PK\1\2", content.rindex(b"PK\1\2", 0, content.rindex(name)))
    (of_name, of_extra) = struct.unpack_from("<HH", content, local + 26)
    yield "values", local + 30 + of_name + of_extra + 3
    offsets = {"signature": 0, "method": 8, "checksum": 14, "length of name": 26, "rest": 28, "name": 30}
    yield from ((f"{what} in its header", local + offset) for what, offset in offsets.items())
    offsets = {"checksum": 16, "size": 24, "length of name": 28, "comment": 32, "place": 42, "name": 46}
    yield from ((f"{what} in the directory", entry + offset) for what, offset in offsets.items())


def is_refused(whole: Path, at: int, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether a file with a wrong bit is refused. If not, its values are right."""
    there, content = whole.with_name("there.npz"), bytearray(whole.read_bytes())
    content[at] ^= 1
    damaged = whole.with_name(f"damaged{whole.suffix}")
    damaged.write_bytes(content)
    status = main(["convert", str(damaged), str(there)])
    said = capsys.readouterr().err
    assert (status, there.exists()) in ((0, True), (2, False)), said
    if status:
        assert said.startswith("xbridge-array: cannot read ")
    else:
        assert values(there) == VALUES
        there.unlink()
    return bool(status)


@pytest.mark.parametrize(
    ("name", "member"),
    [("a.pt", "data/0"), ("a.pt", "data.pkl"), ("a.npz", "w.npy"), ("packed.npz", "w.npy")],
)
def test_convert__with_one_wrong_bit_the_values_are_right_or_the_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, member: str
) -> None:
    """Wherever a bit of an archive is wrong, its values are right or it is refused."""
    whole = good(tmp_path / name)
    refusals = {what for what, at in parts(whole, member) if is_refused(whole, at, capsys)}
    of_directory = {"checksum in the directory", "comment in the directory"}
    assert of_directory | {"values", "rest in its header"} <= refusals


@pytest.mark.skipif(not hasattr(torch.serialization, "set_crc32_options"), reason="always writes them")
def test_convert__torch_file_without_checksums_is_refused(tmp_path: Path, cli: Cli) -> None:
    """A torch file without checksums is refused, as if one of them differed."""
    torch.serialization.set_crc32_options(False)
    try:
        path, there = good(tmp_path / "a.pt"), tmp_path / "b.npz"
    finally:
        torch.serialization.set_crc32_options(True)
    assert "the checksum of its record " in cli.refused("convert", path, there)
    assert not there.exists()


@pytest.mark.parametrize("how", ["compressed", "of another machine", "of torch before 1.6"])
def test_convert__what_torch_cannot_map_it_loads(tmp_path: Path, cli: Cli, how: str) -> None:
    """torch loads what it cannot map, and checksums are of what is in the file."""
    path, numbers = tmp_path / "a.pt", np.arange(1000)
    torch.save({"a": torch.from_numpy(numbers)}, path, _use_new_zipfile_serialization="1.6" not in how)
    if "1.6" not in how:
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        if how == "of another machine":
            members |= {"a/byteorder": b"big", "a/data/0": numbers.astype(">i8").tobytes()}
        kind = zipfile.ZIP_DEFLATED if how == "compressed" else zipfile.ZIP_STORED
        with zipfile.ZipFile(path, "w", kind) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    cli.run("convert", path, tmp_path / "b.npz")
    assert values(tmp_path / "b.npz") == {"a": numbers.tolist()}


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.pt", "old.pt", "pickle.pt"])
def test_convert__code_of_a_pickle_does_not_run(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A hostile pickle is named and not run."""
    monkeypatch.chdir(tmp_path)
    said = "it holds Python objects, as a pickle, which can run code when it is read"
    if name.endswith(".pt"):
        said = f"it asks for {os.mkdir.__module__}.mkdir, which is not a tensor and could run code"
        torch.save({"a": Evil()}, name, _use_new_zipfile_serialization=name != "old.pt")
        if name == "pickle.pt":
            Path(name).write_bytes(pickle.dumps(Evil()))
            said = "cannot read pickle.pt: "
    else:
        (np.save if name == "a.npy" else np.savez)(name, np.array([Evil(), None]))
    assert said in cli.refused("convert", name, "b.npz")
    assert listing(tmp_path) == {name}


def npy(descr: str, shape: tuple[int, ...], values: bytes, version: int = 1) -> bytes:
    """A `.npy` file that says so of itself."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    header = file.getvalue()
    return header[:6] + bytes([version]) + header[7:] + values


def safetensors(header: bytes, values: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + values


def archive(members: list[tuple[str, bytes]]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name that is there twice
        for name, content in members:
            opened.writestr(name, content)
    return file.getvalue()


U8 = b'{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}'

CONTENTS: list[tuple[str, bytes, str]] = [
    (".npy", npy("<f8", (2,), bytes(24)), "8 bytes follow its array, perhaps another array"),
    (".npy", npy("<f8", (1 << 59,), bytes(8)), "it has only 8 of the 4611686018427387904 bytes of its"),
    (".npy", npy("<f8", (1 << 60,), bytes(8)), "array is too big"),
    (".npy", npy("<f8", (0, 1 << 60), b""), "array is too big"),
    (".npy", npy("<f8", (1,) * 65, bytes(8)), "maximum supported dimension for an ndarray is currently 64"),
    (".npy", npy("<f8", (True,), bytes(8)), "an integer is required"),
    (".npy", npy("<f8", (-1,), b""), "there is no float64 array of shape (-1,)"),
    (".npy", npy("|S0", (2,), b""), "there is no |S0 array of shape (2,)"),
    (".npy", npy("<f8", (1,), bytes(8), 3), "its header has the unknown version (3, 0)"),
    (".npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': [[[[[['}", "EOF in multi-line statement"),
    (".npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "its header has 4294967295 bytes, and NumPy reads 10000"),
    (".npz", archive([("readme.txt", b"no array")]), "its member 'readme.txt' is not an array"),
    (".npz", archive([("x.npy", npy("<f8", (1,), bytes(8)))] * 2), "it has 2 members named 'x.npy'"),
    (".npz", archive([("x.npy", npy("<f8", (1,), bytes(24)))]), "more bytes follow the values of 'x'"),
    (".npz", archive([("x.npy", b"")])[:-18] + bytes(18), "its directory shows only 0 of its members"),
    (".npz", archive([("x.npy", b"")]).replace(b"PK\1\2\x14\3\x14", b"PK\1\2\x14\3\xff"), "version 25.5"),
    (".pt", b"junk" * 100, "KeyError("),
    (
        ".safetensors",
        safetensors(b'{"x":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}', bytes(1)),
        "the dtype F4 of 'x' is unknown",
    ),
    (".safetensors", safetensors(b'{"x":' + U8 % (2, 0, 1) + b"}", bytes(1)), "Error while "),
    (".safetensors", safetensors(b'{"x":' + U8 % (1, 0, 1) + b"}", bytes(2)), "Error while "),
    (
        ".safetensors",
        safetensors(b'{"x":' + U8 % (1, 0, 1) + b',"x":' + U8 % (1, 0, 1) + b"}", bytes(1)),
        "its header has 'x' twice",
    ),
    (".safetensors", safetensors(b"{", b""), "Error while deserializing header"),
]


@pytest.mark.parametrize(("suffix", "content", "reason"), CONTENTS)
def test_convert__content_that_cannot_be_is_refused(
    tmp_path: Path, cli: Cli, suffix: str, content: bytes, reason: str
) -> None:
    """A header that cannot be is refused, in a file of its own and in an archive."""
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    assert reason in cli.refused("convert", path, tmp_path / "b.npz")
    if suffix == ".npy":
        path.write_bytes(archive([("x.npy", content)]))
        path = path.rename(tmp_path / "a.npz")
        cli.refused("convert", path, tmp_path / "b.npz")
    assert listing(tmp_path) == {path.name}


def test_convert__header_that_is_a_bomb_is_not_unpacked(tmp_path: Path, cli: Cli) -> None:
    """A header that is a bomb is not unpacked."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("x.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 32 << 20) + bytes(32 << 20))
    tracemalloc.start()
    said = cli.refused("convert", path, tmp_path / "b.npz")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "its header has 33554432 bytes" in said
    assert most < 4 << 20
