"""`explain FILE`: the plan of `xbridge.explain` for each array of a file, of which no value is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

import xbridge
from xbridge.files import main

pytest.importorskip("torch")

if TYPE_CHECKING:
    from pathlib import Path

    from shell import Cli


def test_explain__each_array_has_the_plan_that_its_conversion_would_run(tmp_path: Path, cli: Cli) -> None:
    """Each array has the plan that its conversion would run."""
    a, b = np.arange(6.0).reshape(2, 3), np.ones(2, ">f4")
    np.savez(tmp_path / "x.npz", a=a, b=b)
    out = cli.run("explain", tmp_path / "x.npz", "--to", "torch", "--dtype", "float32")
    plans = [str(xbridge.explain(x, "torch", dtype="float32")) for x in (a, b)]
    assert out == f"a\n{plans[0]}\n\nb\n{plans[1]}\n"
    out = cli.run("explain", tmp_path / "x.npz", "--to", "torch", "--array", "b")
    assert out == f"b\n{xbridge.explain(b, 'torch')}\n"


def test_explain__every_option_is_that_of_the_conversion(tmp_path: Path, cli: Cli) -> None:
    """Every option is that of the conversion."""
    np.save(tmp_path / "x.npy", np.asfortranarray(np.arange(6).reshape(2, 3)))
    options = ("--copy", "false", "--device", "cpu", "--grad", "detach")
    out = cli.run("explain", tmp_path / "x.npy", "--to", "torch", *options)
    x = np.load(tmp_path / "x.npy")
    assert out == f"{xbridge.explain(x, 'torch', copy=False, device='cpu', grad='detach')}\n"
    out = cli.run("explain", tmp_path / "x.npy", "--to", "torch", "--copy", "true", "--json")
    assert json.loads(out) == [
        {"name": None, **json.loads(json.dumps(xbridge.explain(x, "torch", copy=True).to_dict()))}
    ]


def test_explain__tensor_is_explained_as_torch_loads_it(tmp_path: Path, cli: Cli) -> None:
    """A tensor is explained as torch loads it."""
    import torch

    tensor = torch.ones(3, requires_grad=True)
    torch.save(tensor, tmp_path / "x.pt")
    out = cli.run("explain", tmp_path / "x.pt", "--to", "numpy")
    assert out == f"{xbridge.explain(tensor, 'numpy')}\n"
    assert "the graph ends here" in out


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("--to cuda", "--to torch --device cuda"),
        ("--to pytorch", "--to torch"),
        ("--to numpy --dtype flaot32", "--dtype float32"),
        ("--to numpy --device cuda:x", "--device cpu"),
    ],
)
def test_explain__hint_is_in_options_of_the_command(
    tmp_path: Path, cli: Cli, capsys: pytest.CaptureFixture[str], given: str, hint: str
) -> None:
    """What a message names can be typed in the shell, and gives a plan."""
    pytest.importorskip("torch")
    np.save(tmp_path / "x.npy", np.ones(2, "f4"))
    assert cli.refused("explain", tmp_path / "x.npy", *given.split()).endswith(f"; try {hint}\n")
    words = hint if "--to" in hint else f"--to numpy {hint}"
    assert main(["explain", str(tmp_path / "x.npy"), *words.split()]) in (0, 1)
    assert capsys.readouterr().out


def test_explain__device_that_is_not_here_is_a_failure(tmp_path: Path, cli: Cli) -> None:
    """The exit status is 1 where the conversion would fail for want of its device, also within torch."""
    pytest.importorskip("torch")
    np.save(tmp_path / "x.npy", np.ones(2, "f4"))
    cli.run("convert", tmp_path / "x.npy", tmp_path / "x.pt")
    for path in ("x.npy", "x.pt"):
        out = cli.run("explain", tmp_path / path, "--to", "torch", "--device", "cuda:77", status=1)
        assert "torch has no device cuda:77 here" in out


def test_explain__refusal_is_a_plan_and_a_wrong_name_is_not(tmp_path: Path, cli: Cli) -> None:
    """A refusal is a plan and a wrong name is not."""
    np.savez(tmp_path / "x.npz", when=np.zeros(2, "M8[s]"))
    np.savez(tmp_path / "y.npz", x=np.zeros(2), when=np.zeros(2, "M8[s]"))
    for path in ("x.npz", "y.npz"):
        out = cli.run("explain", tmp_path / path, "--to", "torch", status=1)
        assert "DTypeError: cannot convert a numpy " in out
    said = cli.refused("explain", tmp_path / "x.npz", "--to", "torch", "--array", "q")
    assert "cannot find the array 'q': the file has 'when'\n" in said
    assert "cannot find backend 'nobody'" in cli.refused("explain", tmp_path / "x.npz", "--to", "nobody")
    assert "it does not exist" in cli.refused("explain", tmp_path / "no.npz", "--to", "torch")


def test_explain__file_of_any_size_is_explained_at_once(tmp_path: Path, cli: Cli) -> None:
    """A file of any size is explained at once."""
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (1 << 34,)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + (1 << 37))  # 128 GiB, of which the disk holds nothing
    assert "137,438,953,472 bytes" in cli.run("explain", path, "--to", "torch")
