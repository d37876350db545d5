"""`migrate`: which conversions by hand are found, what replaces them, and what stays as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shell import Cli

from xbridge.files import main

migrate = pytest.importorskip("xbridge.files.idioms").migrate
torch = pytest.importorskip("torch")
pytest.importorskip("jax")

HEAD = "import numpy as np\nimport torch\nimport torch as th\nimport jax.numpy as jnp\n"

KEPT = [
    ("t.detach().cpu().numpy()", "to_numpy(t)"),
    ("t.cpu().detach().numpy().copy()", "to_numpy(t, copy=True)"),
    ("t.clone().cpu().numpy()", "to_numpy(t, copy=True)"),
    ("torch.ones(3).numpy()", "to_numpy(torch.ones(3))"),
    ("t.numpy(force=True)", "to_numpy(t)"),
    ('t.to("cpu").numpy()', "to_numpy(t)"),
    ("t.detach().float().numpy()", 'to_numpy(t, dtype="float32")'),
    ("t.to(torch.float64).numpy()", 'to_numpy(t, dtype="float64")'),
    ("t.detach().numpy().astype(np.float64)", 'to_numpy(t, dtype="float64", copy=True)'),
    ("(t if 1 else a).cpu().numpy()", "to_numpy(t if 1 else a)"),
    ("np.asarray(t.detach().cpu())", "to_numpy(t)"),
    ("np.array(t.cpu())", "to_numpy(t, copy=True)"),
    ("t.detach().cpu().tolist()", "to_list(t)"),
    ("torch.from_numpy(a)", "to_torch(a)"),
    ("th.from_numpy(a).clone()", "to_torch(a, copy=True)"),
    ("torch.from_numpy(a).type(torch.float32)", 'to_torch(a, dtype="float32")'),
    ("torch.from_numpy(a).float()", 'to_torch(a, dtype="float32")'),
    ("torch.from_numpy(a).long()", 'to_torch(a, dtype="int64")'),
    ('torch.from_numpy(a).to("cpu", non_blocking=True)', 'to_torch(a, device="cpu")'),
    (
        "torch.from_numpy(a).to(device=t.device, dtype=torch.int)",
        'to_torch(a, device=t.device, dtype="int32")',
    ),
    ("jnp.asarray(t.detach().cpu().numpy())", 'to_jax(t, dtype="nearest")'),
    ("t.contiguous().cpu().numpy()", "to_numpy(t.contiguous())"),
    ("t.sub(1).detach().cpu().numpy()", "to_numpy(t.sub(1))"),
    ("t.detach().unsqueeze(0)[0].squeeze().cpu().numpy()", "to_numpy(t.detach().unsqueeze(0)[0].squeeze())"),
    ("t.float().half().float().cpu().numpy()", 'to_numpy(t.float().half(), dtype="float32")'),
    ("t.sub(1).cpu().tolist()", "to_list(t.sub(1))"),
    ("np.array(t.sub(1).cpu())", "to_numpy(t.sub(1), copy=True)"),
]
"""Conversions by hand that are replaced."""

LISTED = [
    ("t.tolist()", "to_list(t)"),
    ("t.numpy()", "to_numpy(t)"),
    ("t.argmax(-1).numpy()", "to_numpy(t.argmax(-1))"),
    ("t.argmax(-1).tolist()", "to_list(t.argmax(-1))"),
    ('t.sub(1).to("cpu", non_blocking=True)', 'to_torch(t.sub(1), device="cpu")'),
    ("t.numpy().tolist()", "to_list(t)"),
    ("jnp.asarray(t.numpy())", 'to_jax(t, dtype="nearest")'),
    ("t.half().numpy()", 'to_numpy(t, dtype="float16")'),
    ("t.cpu().to(torch.bfloat16).numpy()", 'to_numpy(t, dtype="bfloat16")'),
    ("torch.from_numpy(a).half()", 'to_torch(a, dtype="float16")'),
    ("np.asarray(t)", "to_numpy(t)"),
    ("torch.as_tensor(a, device=t.device)", 'asarray(a, backend="torch", device=t.device)'),
    ("torch.tensor([t, t])", 'asarray([t, t], backend="torch")'),
    ('t.to("cpu", non_blocking=True)', 'to_torch(t, device="cpu")'),
    ('f"{t.detach().numpy()}"', "to_numpy(t)"),
    ("(t.detach()  # why\n    .numpy())", "to_numpy(t)"),
]
"""Conversions that are listed alone, because what they mean depends on the names, or on the text around."""

LEFT = [
    *(
        "a.astype(float)",
        "np.array(a)",
        "np.asarray([1, 2])",
        "t.to(torch.float32)",
        "t.detach()",
        "a.copy()",
    ),
    *("torch.tensor([1.0, 2.0])", "t.numpy(1)", "other.from_numpy(a)", "jnp.asarray(a)", "np.asarray(*a)"),
    *("t.numpy().astype(np.float64, copy=False)", "t.cuda().sum()", "torch.from_numpy(*a)"),
]
"""What is no conversion by hand, but for parts of it."""


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # torch's, where NumPy asks for a copy
@pytest.mark.parametrize(("before", "after"), KEPT)
def test_migrate__replaces_an_idiom_by_a_call_with_the_same_result(before: str, after: str) -> None:
    """An idiom is replaced, and the new program gives the same values, dtype and type."""
    source = f"{HEAD}\ny = {before}\n"
    (idiom,), replaced = migrate(source)
    assert idiom.keeps_meaning
    assert (idiom.line, idiom.before, idiom.after) == (6, before, f"xbridge.{after}")
    assert replaced.splitlines()[-1] == f"y = xbridge.{after}"
    results = []
    for program in (source, replaced):
        names = {"t": torch.arange(3, dtype=torch.float32), "a": np.arange(3.0)}
        exec(program, names)
        results.append(names["y"])
    old, new = results
    assert type(old) is type(new)
    assert getattr(old, "dtype", None) == getattr(new, "dtype", None)
    assert list(old) == list(new)


@pytest.mark.parametrize(("before", "after"), LISTED)
def test_migrate__lists_what_it_cannot_judge(before: str, after: str) -> None:
    """What depends on more than the line is listed, and left as it is."""
    source = f"{HEAD}\ny = {before}\n"
    (idiom,), replaced = migrate(source)
    assert not idiom.keeps_meaning
    assert idiom.after == f"xbridge.{after}"
    assert replaced == source


WRITTEN = [
    "t.detach().numpy()[:] = 0",
    "t.detach().numpy()[0][1] = 0",
    "t.detach().numpy()[0], y = 0, 1",
    "t.detach().numpy().reshape(-1)[0] += 1",
    "t.detach().numpy().flat = 0",
    "t.detach().numpy().fill(0)",
    "np.copyto(t.detach().numpy(), 0)",
    "np.add(1, 2, out=t.detach().numpy())",
    "y = t.detach().numpy()\ny[:] = 0",
    "y = t.detach().numpy()\ny += 1",
    "y = t.detach().numpy()\nnp.copyto(y, 0)",
    "y: np.ndarray = t.detach().numpy()\ny[:] = 0",
    "if (y := t.detach().numpy()).size:\n    y[:] = 0",
    "(y := t.detach().numpy())[:] = 0",
    "self.y = t.detach().numpy()\nself.y[:] = 0",
    "self.y = t.detach().numpy()\nself.y += 1",
    "np.asarray(t.detach())[:] = 0",
    'buf["a"] = t.detach().numpy()\nbuf["a"][0] = 3',
    "p, q = t.detach().numpy(), 1\np[1] = 4",
    "file.readinto(t.detach().numpy())",
    "for row in t.detach().numpy(): row[0] = 1",
    "y = [t.detach().numpy(), 1]\ny[0][1] = 1",
    "y = [t.detach().numpy() for t in ts]\nfor x in y: x[0] += 1",
    'y = {"a": t.detach().numpy()}\ny["a"].fill(0)',
    "y = t.detach().numpy() if 1 else z\ny[0] = 1",
    "y.append(t.detach().numpy())\nnp.copyto(y[0], 0)",
]
"""Statements that write to the memory of a tensor."""


@pytest.mark.parametrize("statement", WRITTEN)
def test_migrate__lists_what_is_written_to(statement: str) -> None:
    """What writes to a tensor's memory stays, because `to_numpy` gives a read-only array of a parameter."""
    (idiom,), replaced = migrate(HEAD + statement)
    assert not idiom.keeps_meaning
    assert "written" in idiom.change
    assert replaced == HEAD + statement


REWRAPPED = [
    "torch.from_numpy(w.detach().numpy()).zero_()",
    "torch.from_numpy(w.detach().numpy()).view(-1)[1:].fill_(7)",
    "torch.from_numpy(w.detach().numpy())[0] = 7",
    "torch.nn.init.zeros_(torch.from_numpy(w.detach().numpy()))",
    "torch.as_tensor(w.detach().numpy()).zero_()",
    "torch.from_numpy(np.asarray(w.detach())).zero_()",
    "a = w.detach().numpy()\ntorch.from_numpy(a).fill_(7)",
    "b = torch.from_numpy(w.detach().numpy())\nb.fill_(7)",
    "a = w.detach().numpy()\nb = torch.from_numpy(a)\nb += 7",
    "a = w.detach().numpy()\na = torch.from_numpy(a)\na.fill_(7)",
    "bs = [torch.from_numpy(w.detach().numpy())]\nfor b in bs: b.fill_(7)",
    "import xbridge\na = w.detach().numpy()\nxbridge.to_torch(a).fill_(7)",
]
"""Statements that write to a parameter by a tensor of its NumPy array."""


@pytest.mark.parametrize("statements", REWRAPPED)
def test_migrate__write_by_a_tensor_of_the_array_still_reaches_the_parameter(statements: str) -> None:
    """A tensor of a read-only array would be a copy, so the array of the parameter stays writable."""
    _, replaced = migrate(HEAD + statements)
    _, again = migrate(replaced)
    results = []
    for program in (HEAD + statements, replaced, again):
        w = torch.ones(3, requires_grad=True)
        exec(program, {"w": w})
        results.append(w.tolist())
    assert results == [results[0]] * 3
    assert results[0] != [1, 1, 1]


@pytest.mark.parametrize(
    "statement",
    [
        "import xbridge\nxbridge.to_torch(t.cpu().numpy()).sum()",
        "y = t.cpu().numpy()\n_(y.__len__())",
        "a[t.cpu().numpy()] = 0",
        "y = t.cpu().numpy()",
        "y = t.cpu().numpy().copy()\ny[:] = 0",
        "self.y = t.cpu().numpy()\nother.z[self.y] = 0",
        "p, q = t.cpu().numpy(), 1\np = q",
        "y = [t.cpu().numpy() for t in ts]\ny[0] = 1\ny.sort()\ny += [1]",
        'y["a"] = t.cpu().numpy()\ny["b"] = 1',
        "for x in t.cpu().numpy(): x = x + 1",
    ],
)
def test_migrate__replaces_what_is_read_or_copied(statement: str) -> None:
    """An index is only read, and a copy is writable."""
    (idiom,), _ = migrate(HEAD + statement)
    assert idiom.keeps_meaning


@pytest.mark.parametrize(
    ("statements", "is_sure"),
    [
        ("torch.ones(3)[1:].numpy()", True),
        ("torch.ones(3).shape.numpy()", False),
        ("t = torch.ones(3)\nt.numpy()", False),
        ("def f(t):\n    return t.numpy()", False),
        ("class Camera:\n    def numpy(self): pass\nCamera().numpy()", False),
        ("for t in ts:\n    t.numpy()", False),
    ],
)
def test_migrate__knows_tensors_by_what_made_them(statements: str, *, is_sure: bool) -> None:
    """Other objects have a method `numpy`, so what it is called on must be a tensor for all to see."""
    (idiom,), _ = migrate(f"import torch\n{statements}\n")
    assert idiom.keeps_meaning is is_sure


@pytest.mark.parametrize("line", ["import xbridge", "import xbridge.tree", "from xbridge import tree"])
def test_migrate__replaces_in_a_file_that_imports_xbridge(line: str) -> None:
    """An import of xbridge defines no other one."""
    (idiom,), _ = migrate(f"{line}\ny = t.cpu().numpy()\n")
    assert idiom.keeps_meaning


@pytest.mark.parametrize(
    "source",
    [
        "from tools import xbridge\n{}",
        "import mylib as xbridge\n{}",
        "def xbridge(): pass\n{}",
        "class xbridge: pass\n{}",
        "for xbridge in []: pass\n{}",
        "def f(xbridge, t):\n    return {}",
    ],
)
def test_migrate__replaces_nothing_beside_another_xbridge(source: str) -> None:
    """In a file with its own `xbridge`, the name would mean the wrong thing."""
    source = source.format("t.detach().cpu().numpy()\n")
    (idiom,), replaced = migrate(source)
    assert (idiom.keeps_meaning, idiom.change) == (False, "another xbridge is defined in this file")
    assert replaced == source


@pytest.mark.parametrize("text", LEFT)
def test_migrate__leaves_other_calls(text: str) -> None:
    """A call that converts nothing, or asks for more than xbridge does in one call, is no idiom."""
    source = f"{HEAD}\ny = {text}\n"
    found, _ = migrate(source)
    assert text not in [idiom.before for idiom in found]


def test_migrate__idiom_within_an_idiom_is_replaced_too() -> None:
    """What an idiom converts may have been converted by hand as well."""
    _, replaced = migrate(HEAD + "y = torch.from_numpy(f(t.cpu().numpy())).clone()\n")
    assert replaced.splitlines()[-1] == "y = xbridge.to_torch(f(xbridge.to_numpy(t)), copy=True)"


def test_migrate__second_run_finds_nothing_more_to_replace() -> None:
    """A program that was migrated is left as it is."""
    _, replaced = migrate("".join([HEAD, *(f"y = {before}\n" for before, _ in KEPT)]))
    assert migrate(replaced) == ([], replaced)


def test_command__lists_shows_and_writes(tmp_path: Path, cli: Cli) -> None:
    """The command lists, `--diff` prints a patch, and `--write` keeps encoding and line ends."""
    module = tmp_path / "a.py"
    lines = ["# -*- coding: latin-1 -*-", "import torch", ""]
    lines += ["y = torch.ones(2).cpu().numpy()  # \xe9", "z = y.tolist()"]
    module.write_bytes("\r\n".join(lines).encode("latin-1"))
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "b.py").write_bytes(module.read_bytes())
    listed = cli.run("migrate", tmp_path)
    assert f"{module}:4: torch.ones(2).cpu().numpy()  ->  xbridge.to_numpy(torch.ones(2))\n" in listed
    assert f"{module}:5: ? y.tolist()  ->  xbridge.to_list(y)\n" in listed
    assert listed.endswith("2 conversions in 1 files; --write replaces 1\n")
    assert [entry["line"] for entry in json.loads(cli.run("migrate", "--json", tmp_path))] == [4, 5]
    patch = cli.run("migrate", "--diff", module)
    assert "-y = torch.ones(2).cpu().numpy()" in patch
    assert "+y = xbridge.to_numpy(torch.ones(2))" in patch
    cli.run("migrate", "--write", module)
    lines[3] = "y = xbridge.to_numpy(torch.ones(2))  # \xe9"
    lines.insert(2, "import xbridge")
    assert module.read_bytes() == "\r\n".join(lines).encode("latin-1")


@pytest.mark.parametrize("content", [b"def", b"\xff", None])
def test_command__names_a_file_that_it_cannot_read(content: bytes | None, tmp_path: Path, cli: Cli) -> None:
    """A file that is no Python, or is not there, is named in one line."""
    module = tmp_path / "a.py"
    if content is not None:
        module.write_bytes(content + b" x.numpy()")
    assert str(module) in cli.refused("migrate", module)


def test_migrate__function_of_the_same_name_does_not_call_itself() -> None:
    """A module with a function `to_numpy` of its own calls that of xbridge, and is not replaced again."""
    _, replaced = migrate("def to_numpy(t):\n    return t.detach().numpy()  # stays\n")
    assert replaced == "import xbridge\n\ndef to_numpy(t):\n    return xbridge.to_numpy(t)  # stays\n"
    assert migrate(replaced) == ([], replaced)


@pytest.mark.parametrize("source", ["torch.from_numpy(a.T).contiguous()", "t.T.contiguous().numpy()"])
def test_migrate__contiguous_memory_stays_so(source: str) -> None:
    """`contiguous` makes memory of its own in another order, so it stays in the program."""
    namespace: dict[str, Any] = {"a": np.ones((2, 3)), "t": torch.ones(2, 3)}
    exec(migrate(f"import torch\ny = {source}\n")[1], namespace)
    y = np.asarray(namespace["y"])
    assert y.flags.c_contiguous
    y[:] = 5
    assert float(namespace["a"].sum() + namespace["t"].sum()) == 12.0


def test_run__file_that_is_no_python_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder is migrated but for the file that cannot be parsed, which the error names."""
    line = "y = t.detach().cpu().numpy()\n"
    for name, text in {"a": line, "b": f"print 'old'\n{line}", "c": line}.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert main(["migrate", "--write", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert "b.py" in shown.err
    assert shown.out.endswith("2 conversions in 2 files; 2 replaced\n")
    found = [(tmp_path / f"{name}.py").read_text() for name in "abc"]
    assert [text.count("to_numpy(t)") for text in found] == [1, 0, 1]


def test_run__refuses_a_notebook(tmp_path: Path, cli: Cli) -> None:
    """A notebook is no Python file, and is not passed over in silence."""
    notebook = tmp_path / "n.ipynb"
    notebook.write_text('{"cells": [{"source": ["t.cpu().numpy()"]}]}')
    assert "notebook" in cli.refused("migrate", notebook)
