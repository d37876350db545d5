"""Shards of safetensors: read by their index, and written all or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from shell import listing, refused, shell

from xbridge.files.formats import npz

ml_dtypes = pytest.importorskip("ml_dtypes")
safetensors = pytest.importorskip("safetensors")
safetensors_numpy = pytest.importorskip("safetensors.numpy")


if TYPE_CHECKING:
    from collections.abc import Callable

ARRAYS = {
    "a": np.arange(3.0),
    "b": np.ones((2, 2), "f4"),
    "c": np.array([1.5, 2.5], ml_dtypes.bfloat16),
    "d": np.zeros(0),
}
M = "m-1.safetensors"
SHARDS = {"m-1.safetensors": ("a", "b"), "m-2.safetensors": ("c", "d")}


def write_index(path: Path, **changes: Any) -> Path:
    files = {name: shard for shard, names in SHARDS.items() for name in names}
    index = {"metadata": {"total_size": 44}, "weight_map": files} | changes
    path.write_text(json.dumps(index))
    return path


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """An index and its shards, written by the library."""
    for shard, names in SHARDS.items():
        some = {name: ARRAYS[name] for name in names}
        safetensors_numpy.save_file(some, tmp_path / shard, metadata={"format": "pt"})
    return write_index(tmp_path / "m.safetensors.index.json")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    safetensors_numpy.save_file(ARRAYS, tmp_path / "w.safetensors", metadata={"title": "t"})
    return tmp_path / "w.safetensors"


def values(arrays: dict[str, Any]) -> dict[str, tuple[str, bytes]]:
    return {name: (str(x.dtype), x.tobytes()) for name, x in arrays.items()}


def test_convert_shard__shards_are_read_by_their_index(
    index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shards are read by their index."""
    there = index.with_name("x.safetensors")
    shell(capsys, "convert", index, there)
    assert values(safetensors_numpy.load_file(there)) == values(ARRAYS)
    assert [line.split()[0] for line in shell(capsys, "show", index).splitlines()[:-1]] == ["array", *ARRAYS]
    assert "numpy bfloat16 (2,)" in shell(capsys, "explain", index, "--to", "numpy", "--array", "c")
    index.rename(index.with_name("nothing"))
    shell(capsys, "convert", index.with_name("nothing"), there, "--force")


def test_convert_shard__text_of_the_shards_and_of_the_index_is_kept(
    index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text of the shards and of the index is kept."""
    write_index(index, metadata={"total_size": 44, "total_parameters": 9, "title": "t", "step": 3})
    there = index.with_name("x.safetensors")
    shell(capsys, "convert", index, there)
    with safetensors.safe_open(str(there), "numpy") as file:
        assert file.metadata() == {"title": "t", "step": "3", "format": "pt"}
    write_index(index, metadata={"format": "np"})
    said = refused(capsys, "convert", index, there, "--force")
    assert "its shards differ in the metadata 'format'" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weight_map": {"a": "gone.safetensors"}}, "its shard gone.safetensors does not exist"),
        ({"weight_map": {"a": M}}, "its shard m-1.safetensors has the array 'b', and its index does not"),
        ({"weight_map": {"c": M, "a": M, "b": M}}, "its shard m-1.safetensors lacks the array 'c'"),
        (
            {"weight_map": {"a": M, "b": "m-2.safetensors"}},
            "m-1.safetensors has the array 'b', and its index",
        ),
        ({"weight_map": {"a": f"../{M}"}}, "which is not a .safetensors or .bin file in its folder"),
        ({"weight_map": {"a": f"{'m' * 300}.safetensors"}}, "m" * 300),
        ({"weight_map": {"a": "model-1.pt"}}, "which is not a .safetensors or .bin file in its folder"),
        ({"weight_map": {"a": 3}}, "it is JSON, and not an index of shards"),
        ({"weight_map": None}, "it is JSON, and not an index of shards"),
        ({"metadata": [1]}, "it is JSON, and not an index of shards"),
    ],
)
def test_convert_shard__index_that_its_shards_contradict_is_refused(
    index: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    """An index that its shards contradict is refused."""
    before = listing(index.parent)
    write_index(index, **changes)
    error = refused(capsys, "convert", index, index.with_name("x.safetensors"))
    assert error.startswith(f"xbridge-array: cannot read {index}: ")
    assert said in error
    assert listing(index.parent) == before


@pytest.mark.parametrize(
    ("size", "split"),
    [
        ("20", [["a", "d"], ["b", "c"]]),
        ("5", [["a", "d"], ["b"], ["c"]]),
        ("0.04KB", [["a", "b", "d"], ["c"]]),
        ("40 b", [["a", "b", "d"], ["c"]]),
    ],
)
def test_convert_shard__shards_have_at_most_the_size_and_an_index_as_other_tools_write_them(
    whole: Path, capsys: pytest.CaptureFixture[str], size: str, split: list[list[str]]
) -> None:
    """Shards have at most the size and an index as other tools write them."""
    there, index = whole.with_name("s.safetensors"), whole.with_name("s.safetensors.index.json")
    said = shell(capsys, "convert", whole, there, "--shard", size)
    assert said.endswith(f"\nthe index of the shards is {index}\n")
    files = [f"s-{number:05}-of-{len(split):05}.safetensors" for number in range(1, len(split) + 1)]
    assert listing(whole.parent) == {whole.name, index.name, *files}
    assert json.loads(index.read_text()) == {
        "metadata": {"total_size": 44},
        "weight_map": {name: file for file, names in zip(files, split, strict=True) for name in names},
    }
    found = [safetensors_numpy.load_file(whole.with_name(file)) for file in files]
    assert [sorted(arrays) for arrays in found] == split
    assert values({name: x for arrays in found for name, x in arrays.items()}) == values(ARRAYS)
    shell(capsys, "convert", index, whole.with_name("again.safetensors"))
    again = values(safetensors_numpy.load_file(whole.with_name("again.safetensors")))
    assert again == values(ARRAYS)


@pytest.mark.parametrize(
    ("target", "size", "said"),
    [
        ("x.safetensors", "five", "cannot write shards of 'five': it is not a size; try --shard 5GB"),
        ("x.safetensors", "0", "it is not a size"),
        ("x.safetensors", "5XB", "it is not a size"),
        ("x.safetensors", "0.1", "it is not a size"),
        ("x.safetensors", "9" * 400, "it is not a size"),
        ("x.npz", "5GB", "only .safetensors files have an index of shards; try x.safetensors"),
    ],
)  # fmt: skip
def test_convert_shard__size_or_a_target_that_cannot_be_is_refused(
    whole: Path, capsys: pytest.CaptureFixture[str], target: str, size: str, said: str
) -> None:
    """A size or a target that cannot be is refused."""
    assert said in refused(capsys, "convert", whole, whole.with_name(target), "--shard", size)
    assert listing(whole.parent) == {whole.name}


def old(folder: Path) -> dict[str, bytes]:
    """Files of an earlier run, in place of the new ones."""
    names = ("s.safetensors", "s.safetensors.index.json", "s-00001-of-00002.safetensors")
    for name in names:
        (folder / name).write_bytes(f"old {name}".encode())
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_convert_shard__shards_replace_what_is_there_only_with_force(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shards replace what is there only with force."""
    there = whole.with_name("s.safetensors")
    before = old(whole.parent)
    assert "it exists; try --force" in refused(capsys, "convert", whole, there, "--shard", "20")
    there.unlink()
    said = refused(capsys, "convert", whole, there, "--shard", "20")
    assert "s-00001-of-00002.safetensors: it exists; try --force" in said
    there.write_bytes(before[there.name])
    shell(capsys, "convert", whole, there, "--shard", "20", "--force")
    assert listing(whole.parent) == {
        whole.name,
        "s.safetensors.index.json",
        "s-00001-of-00002.safetensors",
        "s-00002-of-00002.safetensors",
    }
    index = whole.with_name("s.safetensors.index.json")
    said = refused(capsys, "convert", index, there, "--shard", "20", "--force")
    assert "it is the same file as " in said


@pytest.mark.parametrize("options", [(), ("--array", "d"), ("--shard", "20")])
def test_convert_shard__shard_of_the_source_is_not_replaced_even_with_force(
    index: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A shard of the source is not replaced even with force."""
    before = {path.name: path.read_bytes() for path in index.parent.iterdir()}
    said = refused(capsys, "convert", index, index.with_name("m-1.safetensors"), "--force", *options)
    assert "it is the same file as " in said
    assert {path.name: path.read_bytes() for path in index.parent.iterdir()} == before


@pytest.mark.parametrize("stop", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_convert_shard__run_that_fails_between_renames_leaves_no_index(
    whole: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    at: int,
    stop: BaseException,
) -> None:
    """No index is left that names files of two models, and no partial file."""
    before = old(whole.parent)
    replace: Callable[[Path, Path], Path] = Path.replace
    renamed: list[Path] = []

    def failing(path: Path, target: Path) -> Path:
        if len(renamed) == at:
            raise stop
        renamed.append(target)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", failing)
    there = whole.with_name("s.safetensors")
    status = 130 if isinstance(stop, KeyboardInterrupt) else 2
    refused(capsys, "convert", whole, there, "--shard", "20", "--force", status=status)
    gone = {"s.safetensors.index.json"}
    assert listing(whole.parent) == {*before, *(path.name for path in renamed)} - gone
    assert there.read_bytes() == before[there.name]  # the single file, until all are there


def test_convert__refuses_a_shard_that_is_replaced_while_it_is_read(
    whole: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard is compared like a file of its own."""
    shell(capsys, "convert", whole, whole.with_name("s.safetensors"), "--shard", "20")
    shard = min(whole.parent.glob("s-*.safetensors"))
    write = npz.write

    def replacing_write(*arguments: Any) -> None:
        write(*arguments)
        content = shard.read_bytes()
        shard.unlink()
        shard.write_bytes(content)

    monkeypatch.setattr(npz, "write", replacing_write)
    index = whole.with_name("s.safetensors.index.json")
    words = (index, whole.with_name("new.npz"), "--drop-metadata", "--cast", "bfloat16=float32")
    said = refused(capsys, "convert", *words)
    assert f"cannot read {shard}: it was replaced or written while it was read" in said
    assert not whole.with_name("new.npz").exists()


def test_convert_shard__index_beside_a_new_single_file_is_removed_with_force_and_refused_without(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An index beside a new single file is removed with force and refused without."""
    there, index = whole.with_name("s.safetensors"), whole.with_name("s.safetensors.index.json")
    shell(capsys, "convert", whole, there, "--shard", "20")
    before = {path.name: path.read_bytes() for path in whole.parent.iterdir()}
    said = refused(capsys, "convert", whole, there)
    assert f"cannot write {there}: {index} exists, and would be another model of the same name" in said
    assert said.endswith("; try --force to remove it\n")
    assert {path.name: path.read_bytes() for path in whole.parent.iterdir()} == before
    shell(capsys, "convert", index, there)
    assert listing(whole.parent) == {*before, there.name}  # the source stays
    shell(capsys, "convert", whole, there, "--force")
    assert listing(whole.parent) == {*before, there.name} - {index.name}
    assert values(safetensors_numpy.load_file(there)) == values(ARRAYS)


def test_convert__index_of_torch_files_and_of_dtypes_that_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shards may be files of torch, and an array of an unknown dtype in one can be left out."""
    torch, file = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    small = torch.tensor([[1, 2]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    torch.save({"a": torch.ones(2)}, tmp_path / "m-1.bin")
    file.save_file({"b": torch.zeros(1), "small": small}, tmp_path / "m-2.safetensors")
    files = {"a": "m-1.bin", "b": "m-2.safetensors", "small": "m-2.safetensors"}
    index = write_index(tmp_path / "m.bin.index.json", weight_map=files)
    assert "F4" in shell(capsys, "show", index)
    assert "--skip small" in refused(capsys, "convert", index, tmp_path / "m.npz")
    shell(capsys, "convert", index, tmp_path / "m.npz", "--skip", "small")
    assert {name: x.tolist() for name, x in np.load(tmp_path / "m.npz").items()} == {"a": [1, 1], "b": [0]}
