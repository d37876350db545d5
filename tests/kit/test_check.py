"""The search finds each planted fault, with its cause, and a program that shows it without the kit."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from functools import cache
from io import StringIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import array_api_compat.numpy
import numpy as np
import planted
import pytest
from shell import main
from versions import is_older

import xbridge
from xbridge.testing import _reproduction
from xbridge.testing.check import search, signatures, stages, targets, triage, workers
from xbridge.testing.check.findings import Checked, Finding, as_text, grouped
from xbridge.testing.check.reports import as_json, as_markdown
from xbridge.testing.check.search import check
from xbridge.testing.check.workers import Job, check_in_workers, chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

HELPERS = Path(planted.__file__).parent
ALL_CLASSES = search.Options(tuple(triage.CLASSES), each=20.0, draws=8)
ALL = ("numpy", "torch", "dask", "jax", "array_api_strict")


def findings_of(spec: str, backends: Iterable[str] = ALL, words: str = "") -> list[tuple[Finding, list[str]]]:
    """What is found for a function, one for each cause."""
    used = [name for name in backends if xbridge.is_available(name)]
    read = signatures.read_words(words)
    checked = check(targets.find_targets(spec), used, read, 600.0, options=ALL_CLASSES)
    return grouped(finding for one in checked for finding in one.findings)


@cache
def findings_of_planted(name: str) -> list[tuple[Finding, list[str]]]:
    """What is found for a function of `planted`, searched once for the tests that need it."""
    return findings_of(f"planted:{name}")


def bases(f: Callable[..., Any], words: dict[str, str]) -> Iterator[signatures.Base]:
    return signatures.bases(f, words, f)


PLANTED: dict[str, dict[str, tuple[str, str]]] = {
    "missing_device": {"array_api_strict": ("another device", "raises ValueError")},
    "assumes_contiguous": {"torch": ("transposed", "raises RuntimeError")},
    "reads_memory_order": {"numpy": ("transposed", "values")},
    "reads_last_stride": {"numpy": ("transposed column", "values")},
    "merges_batches": {"torch": ("transposed batch", "raises ValueError")},
    "maximum": {"numpy": ("NaN", "values")},
    "rectify": {"numpy": ("NaN", "drops NaN")},
    "middle": {"numpy": ("int8 wrap-around, uint8 wrap-around", "values")},
    "largest_as_float": {"numpy": ("large integers", "values")},
    "in_place": dict.fromkeys(("numpy", "torch", "array_api_strict"), ("plain arrays", "changes its input")),
    "promoted": {"torch": ("float16, float32, int64, int8, uint8, complex128", "dtype")},
    "cut": {"torch": ("requires_grad", "cuts the graph")},
    "computed": {
        **dict.fromkeys(("dask", "jax"), ("lazy arrays", "computes a lazy array")),
        "torch": ("a derivative", "gradient"),  # a number has none
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_check__finds_each_planted_fault(name: str) -> None:
    """Each planted fault is found in the libraries that show it, with its cause and nothing else."""
    expected = {one: what for one, what in PLANTED[name].items() if xbridge.is_available(one)}
    if not expected:
        pytest.skip("no library shows it here")
    found = findings_of_planted(name)
    assert {
        backend: (one.property, one.problem) for one, backends in found for backend in backends
    } == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_check__program_reproduces_the_finding(name: str) -> None:
    """The program of a finding needs no xbridge, and fails for the faulty function alone."""
    for one, _ in findings_of_planted(name):
        assert "xbridge" not in one.program
        if "not run here" in one.program:
            continue
        with pytest.raises(BaseException) as raised:
            exec(one.program, {})
        assert not isinstance(raised.value, NameError | SyntaxError)
        if name in RIGHT:
            code = one.program.replace(f"from planted import {name}\n", "")
            exec(code, {name: RIGHT[name]})


RIGHT: dict[str, Any] = {
    "missing_device": lambda x: x,
    "maximum": lambda x, y: planted.xp_of(x, y).maximum(x, y),
    "rectify": lambda x: x + 0,
    "middle": lambda x, y: x / 2 + y / 2,
    "largest_as_float": lambda x: x.max(),
    "in_place": lambda x: x * 2,
    "cut": lambda x: x * 2,
    "computed": lambda x: x * 2,
}
"""Functions without the fault, as far as the program of its finding shows it."""


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("planted_contracts:doubled_in_scratch", "is not safe in threads"),
        ("planted_contracts:scaled_by_identity", "depends on earlier calls"),
        ("planted:summed_in_float32", "is inaccurate"),
    ],
)
def test_check__finds_what_a_second_call_shows(name: str, problem: str) -> None:
    """Races of threads, caches and lost digits are found, and explain all that fails with them."""
    found = [one for one, _ in findings_of(name, ["numpy"]) if one.category in triage.DEFAULT]
    assert {one.problem for one in found} >= {problem}
    assert {one.category for one in found} <= {"state", "values", "overflow"}


@pytest.mark.parametrize("name", ["windowed_under_lock", "doubled_in_local_scratch", "windowed_by_cache"])
def test_check__accepts_state_that_is_guarded(name: str) -> None:
    """A lock, memory of each thread, and a cache that is written at once are no findings."""
    found = findings_of(f"planted_contracts:{name}", ["numpy"])
    assert [one for one, _ in found if one.category == "state"] == []


def test_check__ignores_a_use_of_the_range_of_a_dtype() -> None:
    """A result that depends a little on the range of an integer dtype is no wrap-around."""
    assert findings_of("planted:local_threshold", ["numpy"]) == []


@pytest.mark.slow
def test_check__finds_nothing_in_a_correct_function() -> None:
    """A function without a fault has no findings."""
    assert findings_of("planted:centred") == []


def test_check__skips_functions_that_may_do_harm() -> None:
    """Functions that may have effects or draw random numbers are skipped, with the reason."""
    skipped = {
        "planted.save_to": "its name suggests an effect",
        "planted.jitter": "it draws random numbers",
        "planted.writes": "it may write, run or draw something",
        "planted.unstable": "its results differ from call to call",
        "planted.middle": "",
    }
    names = {"planted.of_a_callable", *skipped}
    found = [target for target in targets.find_targets("planted") if target.name in names]
    checked = {one.function: one.skipped for one in check(found, ["numpy"], {}, 60.0)}
    assert {name: checked[name] for name in skipped} == skipped
    assert "no arguments were found" in checked["planted.of_a_callable"]


def test_unsafe__rand_is_also_the_name_of_a_statistician() -> None:
    """`rand_like` draws numbers, and `rand_score` compares two clusterings."""
    reasons = [
        targets.unsafe(targets.Target(f"m.{name}", planted.middle)) for name in ("rand_like", "rand_score")
    ]
    assert reasons == ["its name suggests an effect", ""]


def test_share_of__has_bounds() -> None:
    """A function has its share of the clock, and ten times its processor time at most."""
    assert [search.share_of(seconds, 2, 2.0) for seconds in (0.5, 10.0, 1e9)] == [1.0, 5.0, 20.0]


EFFECTS = """
import os
import numpy as np
from pathlib import Path
from shutil import rmtree

def archive(x):
    np.savez("out.npz", x)
    return x

def table(x):
    np.savetxt("out.txt", x)
    return x

def note(x):
    Path("out.txt").write_text(str(x))
    return x

def clean(x):
    rmtree("kept")
    return x

def move(x):
    os.replace("kept", "gone")
    return x

def tidy(x):
    os.rmdir("kept")
    return x

def indirect(x):
    return _log(x)

def _log(x):
    return _append(x)

def _append(x):
    open("out.txt", "a").close()
    return x

def shorter(x, words=("a", "b")):
    left = list(words)
    left.remove("a")
    return x + len(",".join(left).replace("b", ""))
"""


def module_of(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module in a folder, and return its name."""
    name = f"made_{next(NUMBERS)}"
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    return name


NUMBERS = count()


def test_check__skips_functions_that_change_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that changes files, directly or through helpers of its module, is not called."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").mkdir()
    name = module_of(EFFECTS, tmp_path, monkeypatch)
    before = {*tmp_path.iterdir()}
    checked = {one.function: one.skipped for one in check(targets.find_targets(name), ["numpy"], {}, 60.0)}
    assert checked.pop(f"{name}.shorter") == ""
    assert {*checked.values()} == {"it may write, run or draw something"}
    assert {path for path in tmp_path.iterdir() if path.name != "__pycache__"} == before


def test_check__module_that_exits_or_prints_on_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module that exits or fails on import is refused, and what it prints goes to stderr."""
    monkeypatch.chdir(tmp_path)
    ends = module_of("raise SystemExit(0)", tmp_path, monkeypatch)
    assert main(["check", ends]) == 2
    assert "it ends the process when it is imported; try" in capsys.readouterr().err
    fails = module_of("raise ImportError", tmp_path, monkeypatch)
    assert main(["check", fails]) == 2
    assert "ImportError; try" in capsys.readouterr().err
    targets.find_targets(module_of("print('begins')", tmp_path, monkeypatch))
    assert capsys.readouterr() == ("", "begins\n")


def exits(x: Any) -> Any:
    """End the process with an array that is not NumPy's."""
    if not isinstance(x, np.ndarray):
        sys.exit(3)
    return x


def test_check__function_that_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that exits for the arrays of one library has a finding there."""
    pytest.importorskip("torch")
    monkeypatch.setattr(planted, "exits", exits, raising=False)
    ((found, backends),) = findings_of("planted:exits", ["numpy", "torch"])
    assert (found.problem, found.property, backends) == ("raises SystemExit", "plain arrays", ["torch"])


def test_chosen__refuses_devices() -> None:
    """A named device is refused, since every device of a library is checked."""
    for word in ("array_api_strict:device1", "torch:cuda"):
        with pytest.raises(xbridge.OptionError, match=f"; try {word.partition(':')[0]}$"):
            chosen(word)


def test_check__refuses_an_unwritable_report_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report that cannot be written is refused before any function is called."""
    monkeypatch.setattr(workers, "check_in_workers", None)
    for place, reason in (
        (tmp_path, "it is a directory"),
        (tmp_path / "no" / "x.md", "there is no directory"),
    ):
        assert main(["check", "planted:middle", "--backends", "numpy", "--report", str(place)]) == 2
        assert reason in capsys.readouterr().err


def test_check__calls_nothing_without_time() -> None:
    """A check with no time left calls no function, and says why."""
    (only,) = check(targets.find_targets("planted:middle"), ["numpy"], {}, 0.0)
    assert (only.findings, only.skipped) == ([], "the time is over")


def test_read_words__kinds_of_arguments() -> None:
    """Kinds and values of arguments are given by name, and functions are called with them."""
    words = signatures.read_words("x: float, n: 3, axis: axis, s: number, y: array, t: (1, 2), d: int")
    assert words == {
        "x": "float",
        "n": "3",
        "axis": "axis",
        "s": "number",
        "y": "array",
        "t": "(1, 2)",
        "d": "int",
    }
    assert findings_of("planted:by_option", ["numpy"]) == []
    ((found, _),) = findings_of("planted:by_option", ["numpy"], "mode: 'wrong'")
    assert found.problem == "changes its input"


@pytest.mark.parametrize("words", ["x", "1: float", "x:", "x: float, y", "x: (((", "x: many"])
def test_read_words__refuses_malformed_kinds(words: str) -> None:
    """Malformed and unknown kinds of arguments are refused with a suggestion."""
    with pytest.raises(xbridge.OptionError, match="; try "):
        signatures.read_words(words)


def test_read_words__quotes_an_unknown_kind() -> None:
    """The error about an unknown kind of argument quotes it."""
    with pytest.raises(xbridge.OptionError, match=r"'many'.*; try "):
        findings_of("planted:by_option", ["numpy"], "x: many")


@pytest.mark.parametrize("spec", ["no_such_module", "planted:no_such_function"])
def test_find_targets__missing_module_or_function(spec: str) -> None:
    """A module or function that does not exist is refused with a suggestion."""
    with pytest.raises(xbridge.OptionError, match="; try "):
        targets.find_targets(spec)


def documented(
    x: Any, count: Any, mode: Any, y: Any = None, *, where: Any = None, flag: Any = False, scale: Any = 1.0
) -> Any:
    """Do something.

    Parameters
    ----------
    x, y : array_like
        Arrays.
    count : positive int
        A number.
    mode : {'full', 'same'}
        A word.
    scale : float
        A factor.
    """
    return x


def test_slots_of__reads_the_docstring() -> None:
    """The types in a docstring and the default values give arguments to try."""
    slots = signatures.slots_of(documented, {})
    assert slots is not None
    shown = {slot.name: (slot.kind, slot.values) for slot in slots}
    assert shown["x"] == shown["y"] == ("array", ())
    assert shown["count"] == ("other", (2, 1, 3))
    assert shown["mode"] == ("other", ("full", "same"))
    assert shown["flag"] == ("other", (True,))
    assert shown["scale"] == ("other", (0.5, 2.0))
    labels = [base.label for base in bases(documented, {})]
    assert labels == ["", "y", "flag", "scale"]


def test_slots_of__function_without_a_signature() -> None:
    """A ufunc is called with as many arrays as it has inputs; a builtin without a signature is not."""
    slots = signatures.slots_of(np.add, {})
    assert slots is not None
    assert len(slots) == 2
    assert signatures.slots_of(iter, {}) is None


def test_bases__shapes_shares_and_labels() -> None:
    """Shapes come from the docstring; shares that add up to one and labels of clusters are tried."""
    base = next(bases(planted.combine, {}))
    assert [arg.shape for arg in base.args] == [(4,), (3,), (4, 3)]
    assert base.args[0].sum() == pytest.approx(1)
    points, labels = next(bases(planted.clusters, {})).args
    assert (points.shape, labels.shape, {*labels.tolist()}) == ((4, 3), (4,), {0, 1})
    assert signatures._shapes("array of shape (3, n)") == (("3", "n"),)
    assert signatures._shapes("(..., 4), or batched as `(B, N, 4)`") == (("4",), ("B", "N", "4"))
    assert signatures._shapes("of shape Bx4x2, where x is 3x as long") == (("B", "4", "2"),)
    assert signatures._shapes("array (optional)") == ()
    assert signatures._shapes("(n, 2 | 3) float") == (("n", "2"),)


def test_bases__fixed_sides_definite_matrices_and_words() -> None:
    """A side that is documented as a number is kept, and what a function needs beside arrays is guessed."""

    def durations(intervals: Any, labels: Any, is_exact: bool) -> Any:
        """Return the length of each interval.

        Parameters
        ----------
        intervals : ndarray, shape (n, 2)
        labels : list of str
        """
        start, stop = intervals.T
        return (stop - start, len(labels[0])) if is_exact is False else None

    assert next(bases(durations, {})).args[0].shape == (4, 2)
    matrix = next(bases(np.linalg.cholesky, {})).args[0]
    assert (matrix == matrix.T).all()


def test_bases__shapes_in_prose_and_quoted_choices() -> None:
    """The shapes in a description are tried with their alternatives, and the choices that it quotes."""

    def transform(matrix: Any, boxes: Any, mode: str = "corners") -> Any:
        """Transform boxes.

        Args:
            matrix: The matrix with a shape of :math:`(3, 3)`
                or batched as :math:`(B, 3, 3)`.
            boxes: The tensor of boxes, of shape (N, 4) or
                of shape (B, N, 4).
            mode: 'corners' or 'sizes'.
        """
        assert mode in ("corners", "sizes")
        return np.matmul(boxes[..., :3], matrix) if matrix.ndim == boxes.ndim == 3 else None

    first, second = bases(transform, {})
    assert [x.shape for x in first.args] == [(4, 3, 3), (4, 3, 4)]
    assert second.kwargs == {"mode": "sizes"}


def test_bases__images_and_examples_with_short_numbers() -> None:
    """`*` at the end of a shape is two axes. Integers of examples become floating, if that works."""

    def flatten(x: Any, low: Any) -> Any:
        """Flatten images `x` of shape (B, C, *).

        x : array of shape (B, C, *)
        """
        return x.reshape(*x.shape[:2], -1) - low.min() if x.ndim == 4 else None

    assert [x.shape for x in next(bases(flatten, {})).args] == [(4, 3, 5, 2), (6,)]
    (base,) = signatures.bases(planted.by_name, {}, planted.by_name, ("planted", "by_name"))
    assert base.args[0].dtype == "float64"


def test_bases__scalars_have_no_axis() -> None:
    """A function of a single number gets an array without axes."""

    def double(x: Any) -> Any:
        return 2 * float(x) if x.ndim == 0 else None

    assert next(bases(double, {})).args[0].shape == ()


def test_bases__shape_with_a_kind_of_numbers() -> None:
    """A type that is a shape and a kind of numbers is that of an array."""

    def corners(triangles: Any, faces: Any, masked: Any, limits: Any) -> Any:
        """Return corners.

        Parameters
        ----------
        triangles : (n, 3, 2 | 3) float
        faces : (n, 3) int
        masked : (n,) bool
        limits : (float, float)
        """
        return (
            triangles[masked, 0] * limits
            if triangles.shape[1:] == (3, 2) and faces.dtype.kind == "i"
            else None
        )

    triangles, faces, masked, limits = next(bases(corners, {})).args
    assert (triangles.shape, faces.shape, masked.shape, masked.dtype.kind) == ((4, 3, 2), (4, 3), (4,), "b")
    assert isinstance(limits, float)


def test_bases__each_choice_but_the_default() -> None:
    """An optional word is tried with each of its documented choices, except for the default."""

    def pad(x: Any, mode: str = "edge") -> Any:
        """Pad.

        Parameters
        ----------
        x : array_like
        mode : {'edge', 'wrap', 'broken', 'zero'}
        """
        return None if mode == "broken" else x

    assert [one.kwargs for one in bases(pad, {})] == [{}, {"mode": "wrap"}, {"mode": "zero"}]


def test_arguments_of__ufunc() -> None:
    """A ufunc, which has no module, is called with NumPy's arrays."""
    (target,) = targets.find_targets("numpy:hypot")
    assert len(search.arguments_of(target, {}, ["numpy", "torch"])[1][0].args) == 2


def test_check__function_without_arrays() -> None:
    """The library of a result is no finding if no argument says what it should be."""
    assert findings_of("planted:of_a_length", ["numpy", "array_api_strict"]) == []


def test_bases__list_of_arrays() -> None:
    """An argument that is a list of arrays gets two of them."""
    (pair,) = next(bases(planted.stacked, {})).args
    assert [x.shape for x in pair] == [(6,), (6,)]
    assert findings_of("planted:stacked") == []


def test_bases__literals_of_docstring_examples() -> None:
    """Literals in the examples of a docstring are tried as arguments."""
    found = {base.label: base.args[0].shape for base in bases(planted.swapped, {})}
    assert found == {"the example 'a b -> b a'": (4, 3), "the example 'a -> a'": (6,)}
    if xbridge.is_available("torch"):
        causes = {one.property for one, _ in findings_of("planted:swapped", ["torch"])}
        assert causes == {"the example 'a b -> b a'"}


def test_find_targets__array_namespace() -> None:
    """The functions of an array namespace are compared with those of the same name in NumPy's."""
    pytest.importorskip("torch")
    (add,) = targets.find_targets("array_api_compat.torch:add")
    assert (add.backend, add.reference) == ("torch", np.add)
    (solve,) = targets.find_targets("array_api_compat.torch.linalg:solve")
    assert (solve.backend, solve.reference) == ("torch", array_api_compat.numpy.linalg.solve)
    assert targets.find_targets("array_api_compat.numpy:add")[0].backend == ""
    found = [target.name.rpartition(".")[2] for target in targets.find_targets("array_api_compat.torch")]
    assert {"sum", "clip"} < {*found}
    assert is_older("array-api-compat", "1.13") or "add" in found  # before, `add` says that it is torch's own
    assert not {"add_", "ops", "relu", "median"} & {*found}
    declared = signatures.slots_of(solve.declaration or solve.function, {}) or ()
    assert [slot.name for slot in declared] == ["x1", "x2"]
    (checked,) = check([solve], ["numpy", "torch"], {}, 60.0)
    assert checked.findings == [] or is_older("torch", "2.13")  # 2.7 rounds a float32 system otherwise
    wrong = targets.Target("planted.promoted", planted.promoted, (), "torch", np.sum)
    (checked,) = check([wrong], ["numpy", "torch"], {}, 60.0, options=ALL_CLASSES)
    assert {one.backend for one in checked.findings} == {"torch"}


def test_check__layout_of_one_array_with_more_axes() -> None:
    """A layout that needs more axes is tried with one array alone having them."""
    pytest.importorskip("torch")
    ((found, _),) = findings_of("planted:outer_product", ["torch"])
    assert (found.property, found.problem) == ("transposed", "raises RuntimeError")


def test_as_text__one_line_for_each_cause() -> None:
    """Findings with the same cause share one line of text, section of Markdown and row of JSON."""

    def one(
        function: str, backend: str, needed: str, message: str = "no", problem: str = "raises E"
    ) -> Finding:
        return Finding(function, backend, problem, (needed,), message, f"{function}()", "dtype")

    findings = [
        one("f", "torch", "int8"),
        one("f", "torch", "uint8"),
        one("f", "jax", "int8"),
        one("g", "torch", "int8"),
        one("g", "torch", "int8 and axis="),
        one("g", "torch", "int8", "gives 1", "values"),
    ]
    assert as_text(findings).splitlines() == [
        "function      property     libraries   problem",
        "f and 1 more  int8, uint8  torch, jax  raises E",
        "g             int8         torch       values",
    ]
    program = "```python\nf()\n# the same in g\n```"
    assert f"### f and 1 more: int8, uint8 (torch, jax)\n\n{program}" in as_markdown(findings)
    rows = [line.split(" | ")[:2] for line in as_markdown(findings).splitlines()[2:4]]
    assert rows == [["| high", "g"], ["| medium", "f and 1 more"]]
    assert [row["backends"] for row in json.loads(as_json(findings))] == [["torch", "jax"], ["torch"]]
    assert Finding("f", "torch", "values", (), "", "").cause == "fails for plain arrays"


def job(*names: str, seconds: float = 60.0) -> Job:
    return Job(names, ("numpy",), {}, seconds, emulated=False)


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the helpers."""
    source = Path(xbridge.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", f"{HELPERS}:{source}")


@pytest.mark.slow
@pytest.mark.usefixtures("_here")
def test_check_in_workers__function_that_ends_its_process() -> None:
    """A function that ends its process has a finding, and the next function is checked."""
    checked = {
        one.function: one for one in check_in_workers(job("planted:dies", "planted:middle"), workers=1)
    }
    (found,) = checked["planted.dies"].findings
    assert found.problem == "ends the process"
    assert found.program.splitlines()[-1] == "dies(a)"
    assert checked["planted.middle"].findings


@pytest.mark.slow
@pytest.mark.usefixtures("_here")
def test_check__command_with_findings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The command prints a table and programs, writes its report, and returns 1."""
    report = tmp_path / "report.md"
    options = ["--backends", "numpy", "--workers", "1", "--report", str(report)]
    assert main(["check", "planted:middle", *options]) == 1
    printed = capsys.readouterr().out
    assert "planted.middle  int8 wrap-around, uint8 wrap-around  numpy      values" in printed
    assert "from planted import middle" in printed
    assert "from planted import middle" in report.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("_here")
def test_check__command_without_findings(capsys: pytest.CaptureFixture[str]) -> None:
    """The command returns 0 if nothing is found, and lists what it skipped."""
    assert main(["check", "planted:centred", "planted:of_a_callable", "--backends", "numpy", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    skipped = {"planted.of_a_callable": NO_ARGUMENTS}
    assert shown == {"findings": [], "skipped": skipped, "left_out": {}}


NO_ARGUMENTS = "no arguments were found with which it works; try --args"


@pytest.mark.usefixtures("_here")
def test_check__status_if_nothing_was_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """A check that could call no function is not a success."""
    assert main(["check", "planted:of_a_callable", "--backends", "numpy"]) == 3
    assert capsys.readouterr().out.splitlines()[0] == "nothing was checked"


@pytest.mark.usefixtures("_here")
def test_check__calls_a_function_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A function named by the user is called, though its source suggests an effect or random numbers."""
    assert main(["check", "planted:jitter", "--backends", "numpy", "--json"]) == 3
    skipped = json.loads(capsys.readouterr().out)["skipped"]
    assert skipped == {"planted.jitter": "its results differ from call to call"}
    (target,) = targets.find_targets("planted:jitter")
    assert [one.skipped for one in check([target], ["numpy"], {}, 9.0)] == ["it draws random numbers"]


@pytest.mark.parametrize("option", ["--seconds=0", "--seconds=nan", "--seconds=inf", "--workers=0"])
def test_check__refuses_invalid_seconds_and_workers(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds and workers that are zero or not finite are refused."""
    assert main(["check", "planted", option]) == 2
    assert "; try --each 2 --workers 2" in capsys.readouterr().err


def test_declared__support_of_scipy_functions() -> None:
    """The libraries and devices that SciPy declares unsupported for a function are left out."""
    pytest.importorskip("scipy", minversion="1.17")
    code = (
        "from xbridge.testing.check.targets import declared, find_targets\n"
        "from xbridge.testing.check import targets\n"
        "names = ('logsumexp', 'bdtr', 'lambertw')\n"
        "found = [target for name in names for target in find_targets(f'scipy.special:{name}')]\n"
        "anywhere, on_host, nowhere = map(declared, found)\n"
        "assert anywhere.backends == () and not anywhere.host_only\n"
        "assert on_host.backends == () and on_host.host_only\n"
        "assert nowhere.backends == targets._ALL\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_declared__dispatch_of_scikit_learn() -> None:
    """Functions that scikit-learn does not dispatch are called with NumPy alone."""
    sklearn = pytest.importorskip("sklearn", minversion="1.6")
    found = [
        targets.Target(f"sklearn.metrics.{name}", getattr(sklearn.metrics, name))
        for name in ("r2_score", "auc")
    ]
    assert [targets.declared(target).backends for target in found] == [("dask", "jax"), targets._ALL]


def test_chosen__default_backends() -> None:
    """By default every installed library is checked, except numpy_readonly."""
    names, emulated = chosen(None)
    assert set(names) == {one for one in xbridge.known_backends() if xbridge.is_available(one)} - {
        "numpy_readonly"
    }
    assert emulated <= xbridge.is_available("torch")
    assert chosen("numpy, numpy_readonly") == (("numpy", "numpy_readonly"), False)
    with pytest.raises(xbridge.UnknownBackendError):
        chosen("nunpy")
    if emulated:
        assert chosen("numpy, torch:emu") == (("numpy", "torch"), True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "partition_all",
        "flip",
        "last",
        "unique_total",
        "only_bool",
        "shift_left",
        "words",
        "refuses_missing",
        "median",
        "dot",
        "to_numpy",
        "grow",
    ],
)
def test_check__accepts_what_the_standard_leaves_open(name: str) -> None:
    """Differences that the array API standard permits are not findings."""
    assert findings_of(f"planted:{name}", ["numpy", "torch"]) == []


@pytest.mark.parametrize(("name", "word"), [("one_axis", "axes"), ("not_equal", "equal values")])
def test_check__blames_shape_and_values_before_the_layout(name: str, word: str) -> None:
    """A failure caused by the number of axes or by equal values is not put down to a layout."""
    pytest.importorskip("torch")
    found = findings_of(f"planted:{name}", ["torch"])
    assert found
    assert any(word in one.property for one, _ in found)


def test_check__never_sets_an_integer_to_nan() -> None:
    """An integer argument is not set to NaN, so that the check still finds other faults."""
    assert findings_of("planted:middle", ["numpy"], "x: float, y: int") != []


@pytest.mark.parametrize(
    ("name", "library", "cause", "problem"),
    [
        ("weighted", "torch", "plain arrays", "values"),
        ("discount", "numpy", "NaN", "drops NaN"),
        ("clip_rank", "numpy", "NaN", "drops NaN"),
        ("resize", "numpy", "NaN", "drops NaN"),
        ("only_single", "torch", "plain arrays", "raises TypeError"),
        ("half", "torch", "plain arrays", "raises ValueError"),
    ],
)
def test_check__part_of_a_name_or_of_a_message_hides_nothing(
    name: str, library: str, cause: str, problem: str
) -> None:
    """Neither part of a name nor part of a message hides a failure with plain arrays."""
    if not xbridge.is_available(library):
        pytest.skip(f"{library} is not installed")
    found = findings_of(f"planted:{name}", [library])
    assert (cause, problem) in [(one.property, one.problem) for one, _ in found]


def test_check__blames_no_device_for_what_fails_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that also fails on the default device is put down to plain arrays."""
    pytest.importorskip("array_api_strict")
    (target,) = targets.find_targets("planted:centred")
    call = stages.plain(target, next(bases(target.function, {})), "array_api_strict")
    (device, *_) = stages.devices_of("array_api_strict")
    moved = call.map(lambda one: one._replace(device=device))._replace(
        f=planted.only_for_numpy, path=("planted", "only_for_numpy")
    )
    limit = search.Limit(20.0, 60.0)
    checking = search._Check(target, ("array_api_strict",), {}, ALL_CLASSES, limit, str)
    stage = stages.Stage("device", "another device", moved)
    assert checking._judge(stage, "array_api_strict", "", limit)
    assert [one.property for one in checking.findings] == ["plain arrays"]


def test_check__output_is_no_input() -> None:
    """An array that is passed for the output is not checked as an input."""
    assert not [one for one, _ in findings_of("planted:into", ["numpy"]) if "output" in one.property]


def test_check__skips_libraries_declared_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that a function declares as unsupported is not tried."""
    monkeypatch.setattr(search, "declared", lambda target: targets.Declared(("numpy",), host_only=True))
    assert findings_of("planted:middle", ["numpy"]) == []


def test_check__ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that runs out of time ends, and says that it is incomplete."""
    monkeypatch.setattr(
        search, "time", SimpleNamespace(monotonic=count(0, 0.4).__next__, process_time=time.process_time)
    )
    (only,) = check(targets.find_targets("planted:middle"), ["numpy"], {}, 0.5)
    assert (only.findings, only.skipped, only.is_complete) == ([], "", False)


@pytest.mark.usefixtures("_here")
def test_check__names_functions_left_without_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Functions that were not checked, or only in part, for lack of time are named."""
    left = [one.skipped for one in check_in_workers(job("planted:middle", "planted:cut", seconds=0.0))]
    assert left == ["the time is over"] * 2
    half = Checked("planted.middle", [], "", is_complete=False)
    monkeypatch.setattr(workers, "check_in_workers", lambda *_: iter([half]))
    assert main(["check", "planted:middle", "--backends", "numpy"]) == 0
    assert "in part, because the time was over: middle" in capsys.readouterr().out


def test_check__says_that_the_time_was_too_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A check without findings that left functions out for lack of time has a status of its own."""
    late = Checked("planted.cut", [], search.TIME_IS_OVER)
    results = [Checked("planted.middle", [], ""), late]
    monkeypatch.setattr(workers, "check_in_workers", lambda *_: iter(results))
    monkeypatch.setattr(workers, "find_names", lambda _: {"planted:middle": ["x"], "planted:cut": ["x"]})
    assert main(["check", "planted", "--backends", "numpy"]) == 4
    assert "not checked, because the time is over: cut" in capsys.readouterr().out
    wrong = Finding("planted.middle", "numpy", "values", (), "", "f(a)", category="values")
    results[0] = Checked("planted.middle", [wrong], "")
    assert main(["check", "planted", "--backends", "numpy"]) == 1
    results[:] = [late]
    assert main(["check", "planted", "--backends", "numpy"]) == 3


def test_check__prints_what_was_found_before_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An interrupted check prints its findings, names the other functions, and keeps the baseline."""
    wrong = Finding("planted.middle", "numpy", "values", (), "", "f(a)", category="values")

    def interrupted(*_: object) -> Iterator[Checked]:
        yield Checked("planted.middle", [wrong], "")
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "check_in_workers", interrupted)
    monkeypatch.setattr(workers, "find_names", lambda _: {"planted:middle": ["x"], "planted:cut": ["x"]})
    baseline = tmp_path / "known.json"
    update = ["--baseline", str(baseline), "--update-baseline"]
    assert main(["check", "planted", "--backends", "numpy", *update]) == 130
    out, err = capsys.readouterr()
    assert "planted.middle" in out
    assert "not checked, because the check was interrupted: cut" in out
    assert err == "xbridge-array: interrupted\n"
    assert not baseline.exists()


@pytest.mark.usefixtures("_here")
def test_check_in_workers__counts_the_imports_after_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first process of a worker is started on top of the time that was asked for."""
    left: list[float] = []

    def run(part: Job, *_: object) -> tuple[int, str, float]:
        left.append(part.seconds)
        return 1, "", 0.0

    monkeypatch.setattr(workers, "_run_worker", run)
    clock = SimpleNamespace(monotonic=count(0, 10).__next__)
    monkeypatch.setattr(workers, "time", clock)
    names = [f"planted:f{n}" for n in range(9)]
    skipped = [one.skipped for one in check_in_workers(job(*names, seconds=25.0), workers=1)]
    assert left == [25.0, 25.0, 15.0, 5.0]
    assert skipped == ["the time is over"] * 5


def test_declared__reads_the_capabilities_of_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    """SciPy's table says whether a function supports a library, an accelerator, lazy arrays and jit."""
    entry = {
        "np_only": False,
        "out_of_scope": False,
        "exceptions": ["cupy"],
        "cpu_only": True,
        "jax_jit": False,
        "skip_backends": [("dask.array", "no")],
        "xfail_backends": ["jax.numpy"],
        "allow_dask_compute": False,
    }
    table = {planted.middle: entry, planted.cut: {**entry, "np_only": True}}
    monkeypatch.setitem(sys.modules, "scipy._lib._array_api", SimpleNamespace(xp_capabilities_table=table))

    def read(f: Any) -> targets.Declared:
        return targets.declared(targets.Target("scipy.stats.f", f))

    assert read(planted.middle) == targets.Declared(("dask", "jax"), host_only=True, lazy=True, jit=False)
    assert set(read(planted.cut).backends) == set(targets._ALL) - {"cupy"}
    assert read(planted.maximum).backends == targets._ALL


def test_find_targets__functions_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module stands for the public functions of its package, or for those in `__all__`."""
    found = {target.name for target in targets.find_targets("planted")}
    assert "planted.middle" in found
    others = ("np", "array_api_compat", "Any", "deepcopy", "_COUNT")
    assert not {f"planted.{name}" for name in others} & found
    monkeypatch.setattr(planted, "__all__", ["cut", "np"], raising=False)
    assert [target.name for target in targets.find_targets("planted")] == ["planted.cut"]


def test_find_targets__helpers_of_a_module_are_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module without functions shows those of private modules, and one with functions shows these alone."""
    package = tmp_path / "waves"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "_parts": "def helper(x): return x",
        "moved": "from waves._parts import helper",
        "whole": "from waves._parts import helper\ndef own(x): return helper(x)",
    }.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    found = {name: [one.name for one in targets.find_targets(f"waves.{name}")] for name in ("moved", "whole")}
    assert found == {"moved": ["waves.moved.helper"], "whole": ["waves.whole.own"]}


def unusual(x: Any, *rest: int, shape: Any, num_bins: int, xp: Any = None, **options: Any) -> Any:
    """Take keywords, more numbers, and a shape."""
    return x if shape == (6,) else None


def several(*arrays: Any) -> Any:
    """Take any number of arrays."""
    return arrays[0] + arrays[1]


def of_a_mapping(x: Any, table: dict[str, int]) -> Any:
    """Take what cannot be guessed."""
    return x


def picky(x: Any, weights: Any = None) -> Any:
    """Refuse every weight.

    Parameters
    ----------
    weights : array_like
        Weights.
    """
    if weights is not None:
        raise ValueError("no")
    return x


def test_slots_of__unusual_parameters() -> None:
    """Unusual parameters are filled in or left out; one that cannot be guessed prevents a call."""
    slots = signatures.slots_of(unusual, {})
    assert slots is not None
    assert [(slot.name, slot.kind, slot.values) for slot in slots] == [
        ("x", "array", ()),
        ("shape", "other", ((2, 3), (6,))),
        ("num_bins", "other", (8, 2, 5)),
        ("xp", "other", ()),
    ]
    (base,) = bases(unusual, {})
    assert base.kwargs == {"shape": (6,), "num_bins": 2}
    assert len(next(bases(several, {})).args) == 2
    assert signatures.slots_of(of_a_mapping, {}) is None
    assert signatures.slots_of(lambda x, dtype: x, {}) is None
    assert list(bases(of_a_mapping, {})) == []
    assert [base.label for base in bases(picky, {})] == [""]
    kinds = signatures.read_words("x: array, table: axis")
    assert next(bases(of_a_mapping, kinds)).args[1] == 0
    assert next(bases(of_a_mapping, signatures.read_words("table: number"))).args[1] == 0.5
    assert list(bases(lambda x: None, {})) == []


@pytest.mark.slow
@pytest.mark.usefixtures("_here")
def test_check_in_workers__function_that_does_not_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that does not return is stopped and has a finding."""
    monkeypatch.setattr(workers, "_PATIENCE", 0.5)
    checked = {
        one.function: one
        for one in check_in_workers(job("planted:middle", "planted:hangs", seconds=5.0), workers=1)
    }
    assert checked["planted.hangs"].findings[0].problem == "does not end"


@pytest.mark.slow
@pytest.mark.usefixtures("_here")
def test_check_in_workers__interrupt_ends_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt ends all processes of a check, even one that is just being started."""
    begun: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def popen(*args: Any, **options: Any) -> subprocess.Popen[str]:
        begun.append(start(*args, **options))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    checked = check_in_workers(job("planted:middle", "planted:hangs", seconds=300.0), workers=1)
    assert next(checked).function == "planted.middle"
    checked.close()  # type: ignore[attr-defined] # it is a generator, which an interrupt ends likewise
    assert begun
    assert all(process.poll() is not None for process in begun)
    late = workers.Children()
    late.end()
    assert late.start("while True: pass").wait(30) != 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "reason", "is_confirmed"),
    [
        ("import os; os.kill(os.getpid(), 9)", "ends the process", True),
        ("import os; os.kill(os.getpid(), 9)", "does not end", False),
        ("while True: pass", "does not end", True),
        ("while True: pass", "ends the process", False),
        ("import os; os._exit(0)", "ends the process", True),
        ("import os; os._exit(1)", "ends the process", True),
        ("raise SystemExit(3)", "ends the process", False),
        ("pass", "ends the process", False),
        ("pass", "does not end", False),
        ("x.to('emu:0')", "does not end", True),
    ],
)
def test_result_of_crash__crash_has_to_be_reproduced(
    code: str, reason: str, is_confirmed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A crash or hang is a finding only if the program of the call reproduces it."""
    monkeypatch.setattr(workers, "_PATIENCE", 1.5)
    stored = tmp_path / "program.py"
    stored.write_text(f"numpy\n{code}", encoding="utf-8")
    ended = workers._result_of_crash("planted.cut", reason, stored, workers.Children())
    assert bool(ended.findings) is is_confirmed
    assert ended.skipped == ("" if is_confirmed else f"it {reason} when it is checked, and not by itself")


@pytest.mark.usefixtures("_here")
def test_check_in_workers__worker_that_cannot_start() -> None:
    """A function whose worker cannot start is skipped, with the error as the reason."""
    (one,) = check_in_workers(job("no_such_module:f"), workers=1)
    assert one.skipped.startswith("it cannot be checked: xbridge.errors.OptionError: cannot check")


@pytest.mark.parametrize("with_emulated", [False, True])
def test_workers__main_writes_a_line_for_each_function(
    with_emulated: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker writes a line when it starts and one for each function that it checks."""
    output, stored = tmp_path / "results.txt", tmp_path / "program.py"
    asked = [["planted:centred"], ["numpy"], {}, 20.0, with_emulated, [[], 0, 2.0, 0], []]
    if with_emulated:
        pytest.importorskip("torch")
        from xbridge.testing import emulated

        monkeypatch.setattr(emulated, "install", lambda: None)
    workers.main(str(output), json.dumps(asked), str(stored))
    begun, line = map(json.loads, output.read_text(encoding="utf-8").splitlines())
    assert begun == "begun"
    assert line["function"] == "planted.centred"
    assert "centred(a, axis=0)" in stored.read_text(encoding="utf-8")


STATES = """
import array_api_compat
import numpy as np
import os

def changes_errors(x):
    np.seterr(divide="ignore")
    return x + 1

def changes_environment(x):
    os.environ["SEEN"] = "1"
    return x + 1

def changes_dtype(x):
    if not isinstance(x, np.ndarray):
        array_api_compat.array_namespace(x).set_default_dtype(x.dtype)
    return x + 1

def changes_grad(x):
    if not isinstance(x, np.ndarray):
        array_api_compat.array_namespace(x).set_grad_enabled(False)
    return x + 1
"""


@pytest.mark.parametrize("name", ["errors", "environment", "dtype", "grad"])
def test_check__continues_in_a_fresh_process_after_a_change_of_state(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker leaves the next function to another one if a function changed what calls depend on."""
    torch = pytest.importorskip("torch") if name in ("dtype", "grad") else None
    monkeypatch.setattr(os, "environ", {**os.environ})
    before = torch and (torch.get_default_dtype(), torch.is_grad_enabled())
    module = module_of(STATES, tmp_path, monkeypatch)
    output = tmp_path / "results.txt"
    backends = ["numpy", "torch"] if torch else ["numpy"]
    job = [[f"{module}:changes_{name}", "planted:centred"], backends, {}, 60.0, False, [[], 0, 2.0, 0], []]
    with np.errstate():
        try:
            workers.main(str(output), json.dumps(job), str(tmp_path / "program.py"))
        finally:
            if torch and before:
                torch.set_default_dtype(before[0])
                torch.set_grad_enabled(before[1])
    begun, first, last = map(json.loads, output.read_text(encoding="utf-8").splitlines())
    assert (begun, first["function"], last) == ("begun", f"{module}.changes_{name}", "changed")


HIDING = """
import sys
import numpy as np

def first(x):
    torch = sys.modules.get("torch")
    if torch and isinstance(x, torch.Tensor):
        torch.set_default_dtype(torch.float64)
    return x + 0

def second(x):
    torch = sys.modules.get("torch")
    if torch and isinstance(x, torch.Tensor):
        return torch.ones(x.shape) * (x == x)
    return np.ones(x.shape) * (x == x)
"""


def module_at(text: str, name: str, folder: Path) -> str:
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return name


@pytest.mark.slow
@pytest.mark.usefixtures("_here")
def test_check__finds_what_an_earlier_function_would_hide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finding that needs torch's own default dtype is found after a function that changes it."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    module = module_at(HIDING, "hiding", tmp_path)

    def found(*names: str) -> set[str]:
        asked = Job(
            tuple(f"{module}:{name}" for name in names),
            ("numpy", "torch"),
            {},
            60.0,
            emulated=False,
            options=ALL_CLASSES,
        )
        (last,) = [one for one in check_in_workers(asked, workers=1) if one.function == "hiding.second"]
        return {one.problem for one in last.findings}

    assert found("first", "second") == found("second") != set()


HARMFUL = """
import os
import signal
import time

def overwrites(x):
    getattr(__import__("i" + "o"), "op" + "en")("kept.txt", "w").close()
    return x + 1

def lives():
    with getattr(__import__("i" + "o"), "op" + "en")(os.environ["ALIVE"], "a") as alive:
        print(os.getpid(), file=alive)
    while True:
        time.sleep(1)

def leaves(x):
    if getattr(os, "fo" + "rk")() == 0:
        lives()
    return x + 1

def leaves_session(x):
    if getattr(os, "fo" + "rk")() == 0:
        os.setsid()
        if getattr(os, "fo" + "rk")() == 0:
            lives()
        os._exit(0)
    return x + 1

def shadows(x):
    getattr(__import__("i" + "o"), "op" + "en")("json.py", "w").close()
    return x + 1
"""


@pytest.mark.slow
@pytest.mark.usefixtures("_here")
def test_check__keeps_the_callers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a function writes into the current folder is written into a temporary one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.txt").write_text("kept", encoding="utf-8")
    module = module_at(HARMFUL, "harmful", tmp_path)
    checked = [*check_in_workers(job(f"{module}:overwrites", f"{module}:shadows"), workers=1)]
    assert [(one.skipped, one.findings) for one in checked] == [("", [])] * 2
    assert (tmp_path / "kept.txt").read_text(encoding="utf-8") == "kept"
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"kept.txt", "harmful.py"}


def has_ended(number: int) -> bool:
    """True once a process is gone. One that was killed may take a moment."""
    try:
        process = os.pidfd_open(number)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 60)[0])
    finally:
        os.close(process)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs fork, and processes as files")
@pytest.mark.parametrize("function", ["leaves", "leaves_session"])
@pytest.mark.usefixtures("_here")
def test_check__ends_what_a_function_has_started(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that a function has forked is not waited for, and ends with the worker, in any session."""
    monkeypatch.chdir(tmp_path)
    alive = tmp_path / "alive"
    monkeypatch.setenv("ALIVE", str(alive))
    module = module_at(HARMFUL, "harmful", tmp_path)
    (one,) = check_in_workers(job(f"{module}:{function}"), workers=1)
    assert (one.skipped, one.findings) == ("", [])
    numbers = [*map(int, alive.read_text(encoding="utf-8").split())]
    assert numbers
    assert all(map(has_ended, numbers))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import os; os._exit(0)", "it ends the process when it is imported"),
        ("import sys; sys.exit(0)", "it ends the process when it is imported"),
        ("import os; os.kill(os.getpid(), 9)", "it ends the process when it is imported"),
        ("while True: pass", "its import does not end in 3 seconds"),
        ("bytearray(1 << 33)", "MemoryError"),
        ("import planted", "harm has no such function"),
    ],
    ids=["_exit", "exit", "killed", "endless", "memory", "missing"],
)
@pytest.mark.usefixtures("_here")
def test_check__survives_the_import_of_a_module(
    text: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A module is imported by another process, within limits of time and memory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers, "_START", 3.0 if "while" in text else 60.0)
    monkeypatch.setattr(
        workers, "_MEMORY", 2**32 / (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    )
    module = module_at(text, "harm", tmp_path)
    assert main(["check", f"{module}:f", "--backends", "numpy"]) == 2
    assert f"cannot check 'harm:f': {reason}; try " in capsys.readouterr().err


def test_check__names_the_functions_of_a_module(tmp_path: Path) -> None:
    """The process that imports a module writes the names of its functions, or the parts of the error."""
    output = tmp_path / "results.txt"
    workers.write_names(str(output), "planted:middle")
    assert json.loads(output.read_text(encoding="utf-8")) == {"found": {"planted:middle": ["x", "y"]}}
    workers.write_names(str(output), "planted:nothing")
    assert json.loads(output.read_text(encoding="utf-8"))["reason"] == "planted has no such function"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("scales: number", "--args 'scale: number'"),
        ("x: float, y: float", "one of scale, x"),
    ],
)
def test_check__refuses_args_that_no_function_has(
    words: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt argument is named, with the arguments that there are."""
    monkeypatch.setattr(workers, "find_names", lambda _: {"m:f": ["x"], "m:g": ["x", "scale"]})
    assert main(["check", "m", "--backends", "numpy", "--args", words]) == 2
    assert f"no function has such an argument; try {hint}" in capsys.readouterr().err


def test_check__refuses_args_of_functions_without_any(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kinds of arguments say nothing about functions whose parameters are not known."""
    monkeypatch.setattr(workers, "find_names", lambda _: {"m:f": []})
    assert main(["check", "m", "--backends", "numpy", "--args", "x: float"]) == 2
    assert (
        "cannot read --args 'x': no function has such an argument; try no --args" in capsys.readouterr().err
    )


def without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a machine on which CuPy is not installed."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(targets, "is_available", lambda name: name != "cupy")


def test_check__names_the_library_that_a_module_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module whose import fails for an array library has that as the reason."""
    without_cupy(monkeypatch)
    monkeypatch.syspath_prepend(tmp_path)
    output = tmp_path / "results.txt"
    for name, text, lacks in (("first", "import cupy", ["cupy"]), ("second", "import no_such_module", [])):
        workers.write_names(str(output), module_at(text, name, tmp_path))
        assert json.loads(output.read_text(encoding="utf-8"))["lacks"] == lacks


def test_check__names_the_library_that_a_function_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that works with no arguments, and uses a library that is missing, is skipped for that."""
    without_cupy(monkeypatch)
    monkeypatch.syspath_prepend(tmp_path)
    text = (
        "def total(x):\n    return _sum(x)\n\ndef _sum(x):\n    import cupy.linalg\n    return cupy.sum(x)\n"
    )
    (one,) = check(targets.find_targets(f"{module_at(text, 'lacking', tmp_path)}:total"), ["numpy"], {}, 9.0)
    assert (one.skipped, one.lacks) == ("it needs cupy, which cannot be imported", True)


BROKEN = "raise ImportError('its CUDA is too old')\n"


def test_check__module_that_lacks_a_library_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module whose import needs a missing library is skipped, with a status if nothing else is checked."""
    paths = [str(tmp_path), str(Path(xbridge.__file__).parents[1]), str(HELPERS)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    module_at(BROKEN, "cupy", tmp_path)
    module = module_at("import cupy\n", "needing", tmp_path)
    assert main(["check", module, "--backends", "numpy"]) == 5
    reason = "it needs cupy, which cannot be imported"
    assert f"not checked, because {reason}: needing" in capsys.readouterr().out
    left = [Checked("planted.middle", [], "")]
    monkeypatch.setattr(workers, "check_in_workers", lambda *_: iter(left))
    assert main(["check", module, "planted:middle", "--backends", "numpy"]) == 0
    assert "1 functions were checked" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("option", ["text", "json", "junit", "github"])
def test_check__status_if_a_library_is_missing(option: str, tmp_path: Path) -> None:
    """A library whose import fails is named in every format; without it, no function can be checked."""
    module_at(BROKEN, "cupy", tmp_path)
    module_at("import cupy\n", "needing", tmp_path)
    paths = os.pathsep.join([str(tmp_path), str(Path(xbridge.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", "xbridge", "check", "needing", "--format", option],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert done.returncode == 5, done.stderr
    assert "its CUDA is too old" in done.stdout
    assert "it needs cupy, which cannot be imported" in done.stdout


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("_here")
def test_check__keeps_the_findings_of_a_function_whose_check_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the check itself fails, earlier findings are kept and the reason is given."""
    pytest.importorskip("array_api_strict")
    usual = _reproduction.reproduction
    calls = count()

    def fails(*args: Any) -> str:
        if next(calls):
            raise ArithmeticError("of the kit")
        return usual(*args)

    monkeypatch.setattr(search, "reproduction", fails)
    (one,) = check(targets.find_targets("planted:in_place"), ["numpy", "array_api_strict"], {}, 60.0)
    assert [finding.backend for finding in one.findings] == ["numpy"]
    assert one.skipped == "its check raises ArithmeticError: of the kit"


@pytest.mark.usefixtures("_here")
def test_check__shows_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, the command shows a line for each function that is done."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(["check", "planted:of_a_callable", "--backends", "numpy"]) == 3
    assert (
        screen.getvalue()
        == "[1/1] planted.of_a_callable: no arguments were found with which it works; try --args\n"
    )


def test_find_targets__module_that_ends_the_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that exits while it is imported is named, and does not end the check."""
    monkeypatch.syspath_prepend(tmp_path)
    module = module_at("import sys; sys.exit(0)", "leaving", tmp_path)
    with pytest.raises(xbridge.OptionError, match="it ends the process when it is imported"):
        targets.find_targets(module)


def test_children__end_stops_each_process_once() -> None:
    """The processes that run are ended, and one that was stopped is not stopped again."""
    children = workers.Children()
    process = children.start("import sys; sys.stdin.read(); import threading; threading.Event().wait()")
    children.end()
    assert process.poll() is not None
    children.stop(process)
    assert children.start("").poll() is not None


@pytest.mark.parametrize("name", ["relu_", "stop_gradient", "optional_library", "imag", "disagreement"])
def test_check__documented_rules_are_not_found(name: str) -> None:
    """A name in place, a purpose, a missing part, the library's own refusal, and truth values are rules."""
    pytest.importorskip("torch")
    pytest.importorskip("array_api_strict")
    assert findings_of(f"planted:{name}", ["numpy", "torch", "array_api_strict"]) == []


def test_check__optional_argument_that_does_not_matter_is_left_out() -> None:
    """The program has the arguments alone that the failure needs."""
    pytest.importorskip("torch")
    found = findings_of("planted:tail", ["numpy", "torch"])
    assert {one.property for one, _ in found} == {"one element"}
    (target,) = targets.find_targets("planted:tail")
    base = signatures.Base((np.array([0.5]),), {"offset": 0.5}, "offset")
    limit = search.Limit(20.0, 60.0)
    checking = search._Check(target, ("torch",), {}, ALL_CLASSES, limit, str)
    assert checking._judge(
        stages.Stage("draws", "", stages.plain(target, base, "torch")), "torch", "offset", limit
    )
    assert [one.needed for one in checking.findings] == [("these values",)]
    assert "tail(a)" in checking.findings[0].program


def test_grouped__refusal_of_a_layout_and_one_property() -> None:
    """What an array library says of a layout is one cause, and so is a property that two libraries refuse."""

    def one(function: str, backend: str, problem: str, line: str, category: str) -> Finding:
        words = ("neg",) if category == "layout" else ("one element",)
        return Finding(function, backend, problem, words, "no", "f()", category, line, category)

    layouts = [
        one("f", "torch", "raises E", "m.py:1", "layout"),
        one("g", "torch", "raises E", "m.py:2", "layout"),
    ]
    assert [found.title for found, _ in grouped(layouts)] == ["f and 1 more"]
    shapes = [
        one("f", "torch", "raises E", "t.py:1", "shape"),
        one("f", "jax", "raises F", "j.py:2", "shape"),
    ]
    ((_, libraries),) = grouped(shapes)
    assert libraries == ["torch", "jax"]


def test_grouped__what_a_line_raises_is_one_cause() -> None:
    """What one line of a library raises is one cause, whichever functions, libraries and classes reach it."""

    def one(function: str, backend: str, problem: str, category: str, message: str = "no") -> Finding:
        return Finding(function, backend, problem, (category,), message, "f()", category, "m.py:1", category)

    found = [
        one("f", "torch", "raises E", "device"),
        one("g", "jax", "raises F", "shape"),
        one("h", "torch", "raises E", "layout", "negative bit"),
        one("k", "torch", "raises E", "layout", "conjugate bit"),
        one("k", "torch", "values", "layout"),
    ]
    causes = grouped(found)
    assert [(cause.title, names) for cause, names in causes] == [
        ("f and 3 more", ["torch", "jax"]),
        ("k", ["torch"]),
    ]
    again = grouped(cause._replace(backend=", ".join(names)) for cause, names in causes)
    assert [(one.title, one.program, names) for one, names in again] == [
        (one.title, one.program, names) for one, names in causes
    ]


def test_grouped__a_layout_of_a_file_is_one_cause() -> None:
    """Functions of one file that are wrong for one layout, or one axis, share a cause; others do not."""

    def one(function: str, word: str, line: str, group: str = "layout") -> Finding:
        category = "values" if group == "axis" else group
        return Finding(function, "numpy", "values", (word,), "no", "f()", group, line, category)

    found = [
        one("m.f", "broadcast", "m/a.py:1"),
        one("m.g", "broadcast", "m/a.py:2"),
        one("m.k", "byte-swapped", "m/a.py:3"),
        one("m.h", "broadcast", "m/b.py:1"),
        one("m.f", "a negative axis", "m/a.py:1", "axis"),
        one("m.g", "a negative axis", "m/a.py:2", "axis"),
        one("m.u", "reduce", "", "ufunc"),
        one("m.v", "reduce", "", "ufunc"),
        one("n.u", "reduce", "", "ufunc"),
    ]
    titles = [cause.title for cause, _ in grouped(found)]
    assert titles[:4] == ["m.f and 1 more", "m.k", "m.h", "m.f and 1 more"]
    assert titles[4:] == ["m.u and 1 more", "n.u"]


PANIC = """
class PanicException(BaseException):
    __module__ = "pyo3_runtime"

def total(x):
    if not len(x):
        raise PanicException("index out of bounds")
    return x.sum()
"""


def test_check__panic_of_a_rust_extension_is_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The panic of a Rust extension is found, though NumPy's call panics too, and its class is off."""
    monkeypatch.syspath_prepend(tmp_path)
    (one,) = check(targets.find_targets(f"{module_at(PANIC, 'panics', tmp_path)}:total"), ["numpy"], {}, 9.0)
    (found,) = one.findings
    assert (found.problem, found.category) == ("raises PanicException", "crash")
    assert found.message == "PanicException: index out of bounds"
    with pytest.raises(BaseException, match="index out of bounds"):
        exec(found.program, {})


@pytest.mark.slow
def test_check__exit_without_cleanup_is_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that a function ends at once, with any status, is a finding, and the others are checked."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lines = "import os, sys\ndef f(x):\n    print('no', file=sys.stderr)\n    os._exit({})\n"
    lines += "def g(x):\n    return x + 0\n"
    for status in (0, 1):
        (tmp_path / f"ending{status}.py").write_text(lines.format(status))
        names = [f"ending{status}:{name}" for name in "fg"]
        checked = {one.function[-1]: one for one in check_in_workers(job(*names), workers=1)}
        assert [one.problem for one in checked["f"].findings] == ["ends the process"]
        assert (checked["g"].findings, checked["g"].skipped) == ([], "")


def test_check__negative_axis_is_one_from_the_end() -> None:
    """A negative axis gives what the same axis from the start does, unless it is of the result or refused."""
    ((found, _),) = [
        pair
        for name in ("normalized", "with_axis", "from_start")
        for pair in findings_of(f"planted:{name}", ["numpy"])
    ]
    assert (found.problem, found.category) == ("values", "values")
    assert found.property.startswith("a negative axis")
    with pytest.raises(AssertionError):
        exec(found.program, {})


def test_check__axes_that_fail_alike_are_one_finding() -> None:
    """A function that is wrong for several negative axes has one finding, in lists without groups too."""
    (one,) = check(targets.find_targets("planted:normalized"), ["numpy"], {}, 60.0, options=ALL_CLASSES)
    causes = [(found.problem, found.property) for found in one.findings]
    assert len(causes) == len({*causes})
