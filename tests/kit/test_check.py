"""The search finds arguments, holds functions to the default contract, and says what it did not check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from shell import main

import xbridge
from xbridge.testing import _findings
from xbridge.testing._findings import Finding
from xbridge.testing.check import process, worker
from xbridge.testing.check.arguments import arguments_of
from xbridge.testing.check.process import Report, check

if TYPE_CHECKING:
    from collections.abc import Callable

    Checked = Callable[..., dict[str, Any]]

MODULE = "planted_contracts"
FAULTS = {
    "closed": ("changes its input", ()),
    "from_bytes": ("values", ("byte-swapped",)),
    "in_float64": ("aliases an argument", ()),
    "in_order_of_memory": ("values", ("transposed",)),
    "raises_for_all": ("changes a setting", ()),
    "sorted_in_place": ("raises ValueError", ("broadcast",)),
    "tripled_in_buffer": ("changes an earlier result", ()),
    "widened": ("dtype", ("float32",)),
    "windowed": ("is not safe in threads", ()),
}
"""The function with a planted mistake -> the problem, and the properties that it needs."""


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checked:
    """What a worker writes of a function: findings, and what it did not check. It runs in this process."""
    monkeypatch.setattr(worker, "_limit_memory", lambda: None)
    path = tmp_path / "results"

    def run_worker(spec: str, backends: str = "numpy", seconds: float = 60.0) -> dict[str, Any]:
        worker.main(str(path), spec, "0", backends, str(seconds))
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        (done,) = [line["done"] for line in lines if "done" in line]
        found = _findings.read(line["finding"] for line in lines if "finding" in line)
        return {"findings": {(one.problem, one.needed): one for one in found}, **done}

    return run_worker


@pytest.mark.parametrize("name", FAULTS)
def test_worker__finds_a_planted_mistake(name: str, checked: Checked) -> None:
    """A mistake is found with the property that it needs, and its program fails by itself."""
    found = checked(f"{MODULE}:{name}")["findings"]
    assert FAULTS[name] in found
    program = found[FAULTS[name]].program
    assert "xbridge" not in program
    with np.errstate(), pytest.raises(Exception):  # noqa: B017 -- as the mistake has it
        exec(program, {})


@pytest.mark.parametrize("name", ["softmax", "window"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_worker__blames_no_right_function(name: str, library: str, checked: Checked) -> None:
    """Nothing is found in a function without a mistake."""
    pytest.importorskip(library)
    assert checked(f"{MODULE}:{name}", library)["findings"] == {}


@pytest.mark.parametrize(
    ("name", "library", "problem"),
    [
        ("assumes_contiguous", "torch", ("raises RuntimeError", ("transposed",))),
        ("promoted", "torch", ("dtype", ("float32",))),
        ("partition_all", "torch", ("values", ())),
        ("missing_device", "array_api_strict", ("raises ValueError", ("another device",))),
    ],
)
def test_worker__finds_what_a_library_shows(
    name: str, library: str, problem: tuple[str, tuple[str, ...]], checked: Checked
) -> None:
    """Another result than NumPy's, a layout that torch refuses, and a forgotten device are found."""
    pytest.importorskip(library)
    assert problem in checked(f"planted:{name}", library)["findings"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("planted:jitter", "its results differ from call to call"),
        ("planted:of_a_callable", "a required parameter is of no known type, or none is an array"),
        ("planted:half", "no arguments were found with which it works"),
        ("numpy:zeros", "a required parameter is of no known type, or none is an array"),
    ],
)
def test_worker__says_why_a_function_is_not_checked(name: str, reason: str, checked: Checked) -> None:
    """A function that cannot be checked has a reason."""
    pytest.importorskip("torch")
    found = checked(name, "torch" if name == "planted:half" else "numpy")
    assert found["findings"] == {}
    assert found["skipped"] == reason


def test_worker__names_what_it_leaves_out(checked: Checked) -> None:
    """A library that does not take the call, and promises for which no time is left, are named."""
    pytest.importorskip("torch")
    found = checked("planted:half", "numpy,torch")
    assert found["left_out"] == {"torch": "it raises ValueError"}
    ufunc = checked("numpy:hypot", "numpy,torch")
    assert ufunc["left_out"] == {"torch": "it is a ufunc of NumPy"}
    late = checked(f"{MODULE}:softmax", seconds=0)
    assert late["late"]
    assert late["findings"] == {}


def test_worker__refuses_a_module_that_is_not_there(tmp_path: Path) -> None:
    """The reason is written. An array library that is missing is named."""
    path = tmp_path / "results"
    (tmp_path / "needs_cupy.py").write_text("raise ModuleNotFoundError('no', name='cupy')")

    def refusal(spec: str) -> dict[str, str]:
        worker.main(str(path), spec, "0", "numpy", "1")
        (line,) = path.read_text(encoding="utf-8").splitlines()
        found: dict[str, str] = json.loads(line)
        return found

    assert refusal("no_such_module")["missing"] == ""
    assert refusal("planted:no_such_function")["refused"].startswith("AttributeError")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert refusal("needs_cupy")["missing"] == "cupy"


def test_functions_of__those_that_a_module_lists_or_defines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Helpers, classes and what is imported from elsewhere are no functions of a module."""
    (tmp_path / "defines.py").write_text(
        "from json import dumps\nfrom numpy import add\ndef f(x): ...\ndef _g(x): ...\nclass C: ...\n"
    )
    (tmp_path / "lists.py").write_text("from numpy import add\n__all__ = ['add']\ndef f(x): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    functions, classes = worker.functions_of("defines")
    assert ([*functions], classes) == (["defines.f"], ["C"])
    assert worker.functions_of("lists") == ({"lists.add": np.add}, [])
    assert worker.functions_of("lists:f")[0].keys() == {"lists.f"}


# -- arguments -----------------------------------------------------------------------------------


def documented(x: Any, y: Any, labels: Any, mode: Any, n: Any, axis: int = 0) -> None:
    """Do nothing.

    Parameters
    ----------
    x, y : (N, 3) array_like
        Points.
    labels : array of int, shape (N,)
        Classes.
    mode : {'fast', 'slow'}
        A word.
    n : int, positive
        A number.
    axis : int
        Has a default.
    """


def shapes(args: tuple[Any, ...]) -> list[tuple[int, ...]]:
    return [arg.shape for arg in args if isinstance(arg, np.ndarray)]


def test_arguments_of__types_of_numpydoc() -> None:
    """Shapes, kinds, choices and numbers are those of the docstring; defaults stay."""
    (x, y, labels, mode, n), kwargs = next(arguments_of(documented))
    assert shapes((x, y, labels)) == [(4, 3), (4, 3), (4,)]
    assert [one.dtype.kind for one in (x, y, labels)] == ["f", "f", "i"]
    assert (mode, n, kwargs) == ("fast", 2, {})
    assert not np.array_equal(x, y)


def test_arguments_of__annotations() -> None:
    """Arrays, lists of arrays, numbers and flags are recognized by annotations of all forms."""

    def f(x: np.ndarray, more: list[np.ndarray], scale: float, *, exact: bool) -> None: ...

    (x, more, scale), kwargs = next(arguments_of(f))
    assert isinstance(x, np.ndarray)
    assert len(shapes(tuple(more))) == 2
    assert (scale, kwargs) == (0.5, {"exact": False})


def test_arguments_of__tries_shapes_and_kinds() -> None:
    """A parameter of unknown type may be an array of any of several shapes and kinds."""
    tried = [*arguments_of(lambda x, y: None)]
    assert {shapes(args)[0] for args, _ in tried} >= {(), (6,), (4, 3), (3, 3), (2, 3, 4)}
    assert {args[0].dtype.kind for args, _ in tried} == set("fibc")
    assert next(arguments_of(np.hypot))[0][1].shape == (4, 3)


# -- processes -----------------------------------------------------------------------------------

ENDS = """
import os, time
def ends(x):
    os._exit(3)
def hangs(x):
    while True: time.sleep(0.01)
def right(x):
    return x + 1
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a module into the folder of the caller, and give its name."""
    monkeypatch.chdir(tmp_path)

    def write_module(text: str) -> str:
        (tmp_path / "checked.py").write_text(text, encoding="utf-8")
        return "checked"

    return write_module


def test_check__goes_on_after_a_function_that_ends_its_process(
    module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that ends its process, or does not return, is a finding, and the next function is checked."""
    monkeypatch.setattr(process, "_PATIENCE", 1.0)
    report, seen = Report(), list[int]()
    spec = module(ENDS)
    check(spec, ["numpy"], 0.5, report, lambda now: seen.append(len(now.checked)))
    assert {one.function: one.problem for one in report.findings} == {
        "checked.ends": "ends the process",
        "checked.hangs": "does not end",
    }
    assert report.checked == ["checked.ends", "checked.hangs", "checked.right"]
    assert "ends(a)" in report.findings[0].program
    assert seen == [1, 2, 3]


def test_check__limits_memory(module: Callable[[str], str]) -> None:
    """A function that wants more memory than there is gets an error, and not the machine."""
    text = "import numpy as np\ndef f(x):\n    return np.ones((1 << 44,), 'u1')[: x.size] + x\n"
    report = Report()
    check(module(text), ["numpy"], 1.0, report)
    assert report.skipped == {"checked.f": "no arguments were found with which it works"}


@pytest.mark.parametrize("text", ["import os; os._exit(0)", "raise SystemExit", "1 / 0"])
def test_check__refuses_a_module_that_cannot_be_imported(text: str, module: Callable[[str], str]) -> None:
    """A module that ends the process, exits or raises is refused."""
    with pytest.raises(xbridge.OptionError):
        check(module(text), ["numpy"], 1.0, Report())


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("checked.py", "checked"),
        ("./pkg/m.py", "pkg.m"),
        ("src/pkg/m.py", ""),
        ("lib/pkg/m.py", "pkg.m"),
        ("none.py", ""),
        ("checked.f", "checked:f"),
        ("checked", ""),
    ],
)
def test_check__hint_of_what_is_meant(
    spec: str, hint: str, module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is named by the module that it is, if that can be imported; a function by its module."""
    folder = Path(f"{module('')}.py").resolve().parent
    for package in ("pkg", "src/pkg", "lib/pkg"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
        (folder / package / "m.py").touch()
    monkeypatch.syspath_prepend(folder / "lib")
    monkeypatch.setattr(process, "_messages", lambda *_: [{"refused": "it is not there", "missing": ""}])
    with pytest.raises(xbridge.OptionError) as caught:
        check(spec, ["numpy"], 1.0, Report())
    assert str(caught.value).endswith(f"not there{hint and f'; try {hint}'}")


# -- the command ---------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, parts: dict[str, Any], *words: str) -> int:
    """The status of the command, for a check that fills these parts of a report."""
    monkeypatch.setattr(process, "check", lambda *args: vars(args[3]).update(parts))
    return main(["check", "planted", "--backends", "numpy", *words])


FOUND = Finding("m.f", "numpy", "values", ("transposed",), "gives 1", "f(a)")


@pytest.mark.parametrize(
    ("status", "parts"),
    [
        (0, {"checked": ["m.f"]}),
        (1, {"checked": ["m.f"], "findings": [FOUND]}),
        (3, {"skipped": {"m.f": "it cannot"}}),
        (4, {"checked": ["m.f"], "late": {"m.f": ["layout"]}}),
        (5, {"missing": "cupy"}),
    ],
)
def test_check_command__status(
    status: int, parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status says whether something was found, not checked, not checked in time, or missing."""
    assert run(monkeypatch, parts) == status
    assert run(monkeypatch, parts, "--json") == status
    text = capsys.readouterr().out
    found = json.loads(text[text.index("\n{") :])
    assert found["skipped"] == parts.get("skipped", {})
    assert [one["function"] for one in found["findings"]] == ["m.f"] * (status == 1)


def test_check_command__has_a_line_for_each_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was found is a table with programs; what was not checked is a line for each reason."""
    left_out = {"m.f": {"torch": "it raises ValueError"}, "m.g": {"torch": "it raises ValueError"}}
    parts: dict[str, Any] = {"findings": [FOUND], "checked": ["m.f", "m.g"], "skipped": {"m.h": "it cannot"}}
    run(monkeypatch, {**parts, "left_out": left_out, "late": {"m.f": ["layout"]}, "classes": ["C"]})
    assert capsys.readouterr().out.splitlines() == [
        "function  property    libraries  problem",
        "m.f       transposed  numpy      values",
        "",
        "# m.f values: transposed (numpy)",
        "f(a)",
        "",
        "2 functions were checked, without optional arguments",
        "not checked, because it cannot: h",
        "not to the end in the time (layout): f",
        "not with torch, because it raises ValueError: f, g",
        "not checked, because they are classes: C",
    ]


def test_check_command__default_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that are installed are used, without the read-only backend, which hides writes."""
    used: list[str] = []
    monkeypatch.setattr(process, "check", lambda *args: used.extend(args[1]))
    assert main(["check", "planted"]) == 3
    assert "numpy" in used
    assert "numpy_readonly" not in used


def test_check_command__of_a_module(module: Callable[[str], str]) -> None:
    """The whole command finds a mistake in a module of the caller's folder."""
    spec = module("def f(x):\n    x *= 2\n    return x\n")
    assert main(["check", spec, "--backends", "numpy"]) == 1
