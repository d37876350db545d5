"""Files with more than arrays: objects of any class beside tensors, and dtypes that NumPy lacks."""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shell import Cli

torch = pytest.importorskip("torch")


def make_folder() -> None:
    """What must not run."""
    Path("made").mkdir()


class Evil:
    """An object whose pickle makes a folder."""

    def __reduce__(self) -> tuple[Any, ...]:
        return make_folder, ()


class Settings(dict[str, Any]):
    """A dict of a class."""


class Steps(list[Any]):
    """A list of a class."""


class Outer:
    """A class with another one in it."""

    class Inner:
        """A class that a pickle names as an attribute."""


OTHERS: dict[str, Any] = {
    "a dict of a class": Settings(a=1),
    "a list of a class": Steps([1, 2]),
    "a deque": deque([1]),
    "arrays of text, objects and dates": [
        np.array(["a"]),
        np.array([1, "a"], object),
        np.array(["2020"], "M8[D]"),
        np.str_("a"),
        np.ones(2),
    ],
    "records": np.zeros(2, [("a", "f4")]),
    "a NumPy scalar": np.float64(0.9),
    "a NumPy array": np.arange(3, dtype="i4"),
    "a namespace": Namespace(lr=0.1),
    "a path": Path("x"),
    "a class in a class": [Outer.Inner()],
    "a dict with a default": defaultdict(int, a=1),
    "code": Evil(),
}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_read__objects_beside_tensors_are_listed_and_left_out(
    tmp_path: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    legacy: bool,
) -> None:
    """A checkpoint with any objects is shown, and its tensors are converted; nothing of the pickle runs."""
    monkeypatch.chdir(tmp_path)
    content = {"state": {"w": torch.ones(2)}, "other": OTHERS[name]}
    torch.save(content, "a.pt", _use_new_zipfile_serialization=not legacy)
    assert "state.w" in cli.run("show", "a.pt")
    cli.run("convert", "a.pt", "b.npz", "--at", "state")
    assert np.load("b.npz")["w"].tolist() == [1.0, 1.0]
    cli.run("convert", "a.pt", "c.npz", "--flatten", "--skip-other")
    assert not Path("made").exists()


def test_read__tensors_in_a_dict_or_list_of_a_class_are_arrays(tmp_path: Path, cli: Cli) -> None:
    """A class of dicts or lists hides no tensor: its items are read as those of a dict or list."""
    inner = Settings(w=torch.ones(2), steps=Steps([torch.zeros(1)]))
    torch.save({"inner": inner, "code": Evil()}, tmp_path / "a.pt")
    cli.run("convert", tmp_path / "a.pt", tmp_path / "b.npz", "--flatten", "--skip-other")
    content = np.load(tmp_path / "b.npz")
    assert {name: content[name].tolist() for name in content} == {
        "inner.w": [1.0, 1.0],
        "inner.steps.0": [0.0],
    }


@pytest.mark.parametrize("legacy", [False, True])
def test_read__arrays_of_numpy_are_arrays(tmp_path: Path, cli: Cli, legacy: bool) -> None:
    """An array of NumPy in a checkpoint is converted as a tensor is, and not left out as another value."""
    arrays = {"big": np.arange(3, dtype=">i4"), "turned": np.arange(6.0).reshape(2, 3).T}
    content = {"w": torch.ones(2), "cfg": arrays}
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    cli.run("convert", tmp_path / "a.pt", tmp_path / "b.npz", "--flatten")
    cli.run("convert", tmp_path / "b.npz", tmp_path / "c.pt")
    there, again = np.load(tmp_path / "b.npz"), torch.load(tmp_path / "c.pt", weights_only=True)
    assert there.files == ["w", "cfg.big", "cfg.turned"]
    for name, array in arrays.items():
        np.testing.assert_array_equal(there[f"cfg.{name}"], array)
        np.testing.assert_array_equal(again[f"cfg.{name}"].numpy(), array)


def test_read__object_that_no_placeholder_can_stand_for_is_no_damage(tmp_path: Path, cli: Cli) -> None:
    """The error does not ask for another copy of a file that is whole."""
    odd = Settings(a=1)
    odd.more = 2  # type: ignore[attr-defined] # it has a dict of its own
    torch.save({"w": torch.ones(2), "odd": odd}, tmp_path / "a.pt")
    assert "only code of its class" in cli.refused("show", tmp_path / "a.pt")


@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")
def test_read__program_of_torchscript_says_how_its_weights_are_read(tmp_path: Path, cli: Cli) -> None:
    """What the message names are the weights."""
    layer = torch.nn.Linear(2, 1)
    torch.jit.script(layer).save(path := tmp_path / "a.pt")
    said = cli.refused("show", path)
    weights = eval(said.partition("whose weights are ")[2], {"torch": torch, "path": path})
    assert torch.equal(weights["weight"], layer.weight)
