"""Checkpoints of torch: a part, all arrays under flat names, what is beside them, and tied weights."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from shell import Cli, listing

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

if TYPE_CHECKING:
    from pathlib import Path

A, B, C = torch.arange(3.0), torch.ones(2, 2), torch.tensor(7)

CHECKPOINT = {
    "model": {"layer.weight": A, "layer.bias": B},
    "optimizer": {"state": {0: {"step": C}}, "param_groups": [{"lr": 0.5, "params": [0]}]},
    "epoch": 3,
    "note": "x" * 100,
    "best": None,
    "schedule": {},
}

OTHERS = {
    "optimizer.param_groups.0.lr": "float 0.5",
    "optimizer.param_groups.0.params.0": "int 0",
    "epoch": "int 3",
    "note": "str 'xxxxxxxxxxxx...xxxxxxxxxxxxx'",
    "best": "None",
    "schedule": "an empty dict",
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.save(CHECKPOINT, tmp_path / "c.pt")
    return tmp_path / "c.pt"


def saved(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


ODD: dict[str, tuple[Any, str]] = {
    "sparse": (lambda: torch.eye(2).to_sparse(), "a float32 tensor of shape (2, 2): its layout is torch.sp"),
    "meta": (lambda: torch.ones(2, device="meta"), "a float32 tensor of shape (2,): a meta tensor holds no"),
    "half complex": (lambda: torch.ones(1, dtype=torch.complex32), "a complex32 tensor of shape (1,): NumPy"),
}


@pytest.mark.filterwarnings("ignore:(Sparse invariant checks|ComplexHalf support):UserWarning")
@pytest.mark.parametrize("what", ODD)
def test_convert__tensor_that_cannot_be_converted_is_listed_and_the_others_are_converted(
    tmp_path: Path, cli: Cli, what: str
) -> None:
    """A tensor that cannot be converted is listed and the others are converted."""
    make, listed = ODD[what]
    path, there = saved(tmp_path / "c.pt", {"odd": make(), "a": A}), tmp_path / "x.npz"
    lines = cli.run("show", path).splitlines()
    assert lines[1].split() == ["a", "float32", "(3,)", "12", "B"]
    assert lines[-3].startswith(f"odd           {listed}")
    assert lines[-1] == "1 array, 12 B"
    for options in ([], ["--array", "odd"], ["--flatten", "--skip-other"]):
        said = cli.refused("convert", path, there, *options)
        assert f"cannot read {path}: 'odd': cannot convert a torch " in said
    assert listing(tmp_path) == {"c.pt"}
    cli.run("convert", path, there, "--array", "a")
    assert found(there) == {"a": A.tolist()}
    assert "numpy float32 (3,) on cpu" in cli.run("explain", path, "--to", "numpy", "--array", "a")
    assert "refused" in cli.run("explain", path, "--to", "numpy", status=1)
    saved(path, make())
    assert listed in cli.run("show", path)
    assert "cannot read" in cli.refused("convert", path, there, "--force")


def found(path: Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        return {name: x.tolist() for name, x in arrays.items()}


def test_convert__dict_of_a_checkpoint_is_taken_by_its_keys(checkpoint: Path, cli: Cli) -> None:
    """A dict of a checkpoint is taken by its keys."""
    there = checkpoint.with_name("x.npz")
    cli.run("convert", checkpoint, there, "--at", "model")
    assert found(there) == {"layer.weight": A.tolist(), "layer.bias": B.tolist()}
    keys = [word for key in ("optimizer", "state", "0") for word in ("--at", key)]
    cli.run("convert", checkpoint, there, "--force", *keys)
    assert found(there) == {"step": 7}
    cli.run("convert", checkpoint, there, "--force", *keys, "--at", "step")
    assert found(there) == {"arr_0": 7}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "'model' is of type dict, which is not a tensor; try --at model, or --flatten, which takes "),
        ("--at optimizer", "'state' is of type dict, which is not a tensor; try --at optimizer --at state, "),
        ("--at modle", "its keys are 'model', 'optimizer', 'epoch', 'note', 'best' and 1 more\n"),
        ("--at epoch", "'epoch' is int 3"),
        ("--at model --at layer.bias --at x", "c.pt['model']['layer.bias']: it is a Tensor"),
        ("--at schedule --at x", "['schedule']: it is an empty dict"),
        (
            "--flatten",
            "'optimizer.param_groups.0.lr', 'optimizer.param_groups.0.params.0', 'epoch', 'note', ",
        ),
        ("--flatten", "'best' and 1 more are not tensors; try --skip-other, which leaves them out"),
        ("--at schedule --array x", "cannot find the array 'x': the file has no arrays"),
    ],
)
def test_convert__part_that_is_not_arrays_is_refused_with_the_option_that_takes_some(
    checkpoint: Path, cli: Cli, options: str, said: str
) -> None:
    """A part that is not arrays is refused with the option that takes some."""
    words = ("convert", checkpoint, checkpoint.with_name("x.npz"), *options.split())
    assert said in cli.refused(*words)
    assert listing(checkpoint.parent) == {"c.pt"}


def test_convert__all_arrays_are_taken_under_their_keys_and_what_is_left_out_is_listed(
    checkpoint: Path, cli: Cli
) -> None:
    """All arrays are taken under their keys and what is left out is listed."""
    there = checkpoint.with_name("x.npz")
    words = ("convert", checkpoint, there, "--flatten", "--skip-other")
    assert json.loads(cli.run(*words, "--json"))["others"] == [
        {"name": name, "value": value} for name, value in OTHERS.items()
    ]
    assert found(there) == {
        "model.layer.weight": A.tolist(),
        "model.layer.bias": B.tolist(),
        "optimizer.state.0.step": 7,
    }
    named = [word for name in OTHERS for word in ("--skip", name)]
    cli.run(*words[:-1], "--force", *named)
    said = cli.run(*words, "--force").split("\n\n")[1].splitlines()
    assert said[0].split("  ")[0] == "not an array"
    assert [line.split(maxsplit=1) for line in said[1:]] == [[*pair] for pair in OTHERS.items()]


def test_convert__what_is_skipped_is_not_what_the_file_is_refused_for(tmp_path: Path, cli: Cli) -> None:
    """Of values that are not arrays, only those that `--skip` does not leave out are named."""
    path = saved(tmp_path / "a.pt", {"a": A, "args": Namespace(lr=1), "none": None, "step": 3})
    words = ("convert", path, tmp_path / "x.npz", "--flatten", "--skip", "args", "--skip", "none")
    assert "'step' is int 3, not a tensor; try --skip-other, which leaves it out" in cli.refused(*words)
    assert "it asks for argparse.Namespace" in cli.refused(*words[:4])
    cli.run(*words, "--skip", "step")


def test_show__module_is_refused_with_how_to_save_its_tensors(tmp_path: Path, cli: Cli) -> None:
    """A file of a whole module is code, and its state dict is not."""
    path, model = tmp_path / "a.pt", torch.nn.Linear(2, 1)
    torch.save(model, path)
    said = cli.refused("show", path)
    assert said.endswith("Linear; try torch.save(model.state_dict(), path) where it was saved\n")
    torch.save(model.state_dict(), path)
    assert "weight  float32  (1, 2)" in cli.run("show", path)


def test_convert__names_that_clash_are_refused_and_shown(tmp_path: Path, cli: Cli) -> None:
    """Names that clash are refused and shown."""
    path, there = saved(tmp_path / "a.pt", {"a": {"b": A}, "a.b": B, "c": C}), tmp_path / "x.npz"
    said = cli.refused("convert", path, there, "--flatten")
    assert "two values have the name 'a.b', which is their keys joined by dots; try --at KEY, " in said
    assert "'a.b'" in cli.refused("convert", path, there, "--array", "a.b")
    said = cli.refused("convert", path, there, "--flatten", "--skip", "a.b")
    assert "cannot leave out 'a.b': two values have the name 'a.b'" in said
    assert cli.run("show", path).count("a.b ") == 2
    cli.run("convert", path, there, "--at", "a")
    assert found(there) == {"b": A.tolist()}
    cli.run("convert", path, there, "--at", "a.b", "--force")
    assert found(there) == {"arr_0": B.tolist()}
    cli.run("convert", path, there, "--array", "c", "--force")
    assert found(there) == {"c": 7}


def test_convert__numbers_are_keys_where_levels_are_joined(tmp_path: Path, cli: Cli) -> None:
    """Numbers are keys where levels are joined."""
    path, there = saved(tmp_path / "a.pt", {0: A, 7: B}), tmp_path / "x.npz"
    assert "the name 0 is not a string; try --flatten, which makes it '0'" in cli.refused(
        "convert", path, there
    )
    cli.run("convert", path, there, "--flatten")
    assert found(there) == {"0": A.tolist(), "7": B.tolist()}
    saved(path, {0: A, "0": B})
    assert "it is both a string and a number there" in cli.refused(
        "convert", path, there, "--at", "0", "--force"
    )
    assert cli.refused("convert", path, there, "--force").endswith(": the name 0 is not a string\n")
    said = cli.refused("convert", path, there, "--force", "--flatten")
    assert said.endswith("'0', which is both a string and a number there\n")
    saved(path, {"a": {(1, 2): A}})
    assert "the name (1, 2) is not a string" in cli.refused("show", path)


def _laughs() -> object:
    inner: object = [torch.ones(1)]
    for _ in range(40):
        inner = [inner, inner]
    return inner


def _cycle() -> object:
    inner: list[object] = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize("make", [_laughs, _cycle])
def test_show__containers_that_repeat_without_end_are_refused(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    """Containers that repeat without end are refused."""
    from xbridge.files.formats import nested

    monkeypatch.setattr(nested, "_MOST", 1000)
    path = saved(tmp_path / "a.pt", make())
    said = cli.refused("show", path)
    assert "it has more than 1000 values, or values more than 100 levels deep; try --at KEY" in said


@pytest.mark.parametrize("options", [("--flatten",), ("--at", "model")])
def test_convert__tied_weights_are_written_as_arrays_of_their_own_only_if_that_is_allowed(
    tmp_path: Path, cli: Cli, options: tuple[str, ...]
) -> None:
    """Tied weights are written as arrays of their own only if that is allowed."""
    path = saved(tmp_path / "a.pt", {"model": {"embed": A, "head": A, "tail": A[1:]}})
    prefix = "model." if options == ("--flatten",) else ""
    for target in ("x.safetensors", "x.npz", "x.pt"):
        said = cli.refused("convert", path, tmp_path / target, *options)
        assert "share memory, and would be two arrays; try --untie, which writes the values of both" in said
    for target in ("x.npz", "x.pt", "x.safetensors"):
        cli.run("convert", path, tmp_path / target, *options, "--untie")
    values = {f"{prefix}embed": A.tolist(), f"{prefix}head": A.tolist(), f"{prefix}tail": A[1:].tolist()}
    assert found(tmp_path / "x.npz") == values
    loaded = torch.load(tmp_path / "x.pt", weights_only=True)
    assert {name: x.tolist() for name, x in loaded.items()} == values
    assert len({x.untyped_storage().data_ptr() for x in loaded.values()}) == 3
    assert "embed" in cli.run("show", path)
    cli.run("convert", path, tmp_path / "y.npy", *options, "--array", f"{prefix}head")


def test_convert__parts_of_one_memory_that_do_not_overlap_are_arrays_of_their_own(
    tmp_path: Path, cli: Cli
) -> None:
    """Parts of one memory that do not overlap are arrays of their own."""
    whole, turns = torch.arange(6.0), torch.arange(6.0)
    parts = {"a": whole[:3], "b": whole[3:], "even": turns[::2], "odd": turns[1::2], "none": whole[:0]}
    saved(tmp_path / "a.pt", {**parts, "none too": whole[:0]})
    cli.run("convert", tmp_path / "a.pt", tmp_path / "b.npz")
    expected = {"a": [0, 1, 2], "b": [3, 4, 5], "even": [0, 2, 4], "odd": [1, 3, 5], "none": []}
    assert found(tmp_path / "b.npz") == {**expected, "none too": []}


def test_convert__tensor_alone_has_no_name_and_may_be_in_any_order(tmp_path: Path, cli: Cli) -> None:
    """A tensor alone has no name and may be in any order."""
    tensor = torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)
    path = saved(tmp_path / "a.pt", tensor.requires_grad_())
    turned = saved(tmp_path / "t.pt", torch.arange(6.0).reshape(2, 3).T)
    cli.run("convert", path, tmp_path / "b.pt")
    loaded = torch.load(tmp_path / "b.pt", weights_only=True)
    assert (loaded.stride(), loaded.tolist()) == (tensor.stride(), tensor.tolist())
    cli.run("convert", path, tmp_path / "b.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), tensor.detach().numpy())
    cli.run("convert", path, tmp_path / "half.pt", "--cast", "float32=float16")
    assert torch.load(tmp_path / "half.pt", weights_only=True).tolist() == tensor.tolist()
    cli.run("convert", turned, tmp_path / "t.npy")
    columns = np.load(tmp_path / "t.npy")
    assert (columns.tolist(), columns.flags.f_contiguous) == ([[0, 3], [1, 4], [2, 5]], True)


def test_convert__misaligned_values_become_tensors(tmp_path: Path, cli: Cli) -> None:
    """Values that torch cannot map where they are in a file are copied."""
    header = b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}'
    content = len(header).to_bytes(8, "little") + header + np.arange(3, dtype="f4").tobytes()
    assert (len(header) + 8) % 4 != 0
    (tmp_path / "a.safetensors").write_bytes(content)
    cli.run("convert", tmp_path / "a.safetensors", tmp_path / "b.pt")
    assert torch.load(tmp_path / "b.pt", weights_only=True)["a"].tolist() == A.tolist()
