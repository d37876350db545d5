"""Shards of safetensors and of torch, read by their index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shell import Cli, listing

from xbridge.files.formats import npz

ml_dtypes = pytest.importorskip("ml_dtypes")
safetensors = pytest.importorskip("safetensors")
safetensors_numpy = pytest.importorskip("safetensors.numpy")


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


def values(arrays: dict[str, Any]) -> dict[str, tuple[str, bytes]]:
    return {name: (str(x.dtype), x.tobytes()) for name, x in arrays.items()}


def test_convert_shard__shards_are_read_by_their_index(index: Path, cli: Cli) -> None:
    """Shards are read by their index."""
    there = index.with_name("x.safetensors")
    cli.run("convert", index, there)
    assert values(safetensors_numpy.load_file(there)) == values(ARRAYS)
    assert [line.split()[0] for line in cli.run("show", index).splitlines()[:-1]] == ["array", *ARRAYS]
    assert "numpy bfloat16 (2,)" in cli.run("explain", index, "--to", "numpy", "--array", "c")


def test_convert_shard__text_of_the_shards_and_of_the_index_is_kept(index: Path, cli: Cli) -> None:
    """Text of the shards and of the index is kept."""
    write_index(index, metadata={"total_size": 44, "total_parameters": 9, "title": "t", "step": 3})
    there = index.with_name("x.safetensors")
    cli.run("convert", index, there)
    with safetensors.safe_open(str(there), "numpy") as file:
        assert file.metadata() == {"title": "t", "step": "3", "format": "pt"}
    write_index(index, metadata={"format": "np"})
    said = cli.refused("convert", index, there, "--force")
    assert "its shards differ in the metadata 'format'" in said


def test_convert_shard__second_model_of_one_name_needs_force(index: Path, tmp_path: Path, cli: Cli) -> None:
    """A file beside an index of the same name is another model, unless it was made of it."""
    np.save(tmp_path / "x.npy", np.ones(2))
    words = ("convert", tmp_path / "x.npy", tmp_path / "m.safetensors")
    assert "would be another model of the same name; try another name, or --force" in cli.refused(*words)
    cli.run(*words, "--force")
    cli.run("convert", index, tmp_path / "m.safetensors", "--force")


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
    index: Path, cli: Cli, changes: dict[str, Any], said: str
) -> None:
    """An index that its shards contradict is refused."""
    before = listing(index.parent)
    write_index(index, **changes)
    error = cli.refused("convert", index, index.with_name("x.safetensors"))
    assert error.startswith(f"xbridge-array: cannot read {index}: ")
    assert said in error
    assert listing(index.parent) == before


@pytest.mark.parametrize("options", [(), ("--array", "d")])
def test_convert_shard__shard_of_the_source_is_not_replaced_even_with_force(
    index: Path, options: tuple[str, ...], cli: Cli
) -> None:
    """A shard of the source is not replaced even with force."""
    before = {path.name: path.read_bytes() for path in index.parent.iterdir()}
    said = cli.refused("convert", index, index.with_name("m-1.safetensors"), "--force", *options)
    assert "it is the same file as " in said
    assert {path.name: path.read_bytes() for path in index.parent.iterdir()} == before


def test_convert__refuses_a_shard_that_is_replaced_while_it_is_read(
    index: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard is compared like a file of its own."""
    shard, write = index.with_name(M), npz.write

    def replacing_write(*arguments: Any) -> None:
        write(*arguments)
        content = shard.read_bytes()
        shard.unlink()
        shard.write_bytes(content)

    monkeypatch.setattr(npz, "write", replacing_write)
    said = cli.refused("convert", index, index.with_name("new.npz"), "--cast", "bfloat16=float32")
    assert f"cannot read {shard}: it was replaced or written while it was read" in said
    assert not index.with_name("new.npz").exists()


def test_convert__index_of_torch_files_and_of_dtypes_that_are_unknown(tmp_path: Path, cli: Cli) -> None:
    """Shards may be files of torch, and an array of an unknown dtype in one can be left out."""
    torch, file = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    small = torch.tensor([[1, 2]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    torch.save({"a": torch.ones(2)}, tmp_path / "m-1.bin")
    file.save_file({"b": torch.zeros(1), "small": small}, tmp_path / "m-2.safetensors")
    files = {"a": "m-1.bin", "b": "m-2.safetensors", "small": "m-2.safetensors"}
    index = write_index(tmp_path / "m.bin.index.json", weight_map=files)
    assert "F4" in cli.run("show", index)
    assert "--skip small" in cli.refused("convert", index, tmp_path / "m.npz")
    cli.run("convert", index, tmp_path / "m.npz", "--skip", "small")
    assert {name: x.tolist() for name, x in np.load(tmp_path / "m.npz").items()} == {"a": [1, 1], "b": [0]}
