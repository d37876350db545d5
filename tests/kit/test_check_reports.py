"""What a check draws, how it shrinks and ranks what fails, and what it writes for people and for CI."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import numpy as np
import planted
import pytest
from shell import main

import xbridge
from xbridge.testing._call import Call
from xbridge.testing._source import Recipe
from xbridge.testing.check import (
    draws,
    examples,
    ghostwriting,
    native,
    reports,
    search,
    shrinking,
    targets,
    triage,
    workers,
)
from xbridge.testing.check.findings import Checked, Finding, grouped, member
from xbridge.testing.check.search import Options, check

if TYPE_CHECKING:
    from collections.abc import Iterable

NEVER = lambda: False  # noqa: E731 -- a limit that is never over


def finding(category: str, problem: str = "raises E", function: str = "m.f", **more: Any) -> Finding:
    return Finding(function, "torch", problem, ("neg",), "no", "f(a)", "layout", category=category, **more)


def check_one(
    spec: str, backends: Iterable[str], options: Options | None = None, before: Any = str
) -> Checked:
    (one,) = check(
        targets.find_targets(spec), backends, {}, 60.0, options=options, before=before, asked=(spec,)
    )
    return one


# -- draws and shrinking -------------------------------------------------------------------------


def drawn_programs(seed: int) -> list[str]:
    """The programs of the calls of one function, in order."""
    programs: list[str] = []
    check_one("planted:centred", ["numpy"], Options(seed=seed, each=30.0, draws=20), programs.append)
    return programs


def test_options__seed_repeats_the_calls() -> None:
    """The same seed draws the same calls, and another one draws others."""
    first = drawn_programs(1)
    assert first == drawn_programs(1)
    assert first != drawn_programs(2)


def two_properties(x: Any) -> Any:
    """Be wrong for an array that is reversed and read-only."""
    if isinstance(x, np.ndarray) and x.ndim and x.strides[0] < 0 and not x.flags.writeable:
        return x + 1
    return x * 1.0


@pytest.mark.slow
def test_check__finds_what_needs_two_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn arrays have several properties, and the program has those that matter."""
    monkeypatch.setattr(planted, "two_properties", two_properties, raising=False)
    checked = check_one("planted:two_properties", ["numpy"], Options(each=60.0, draws=400))
    assert [{*one.needed} for one in checked.findings] == [{"reversed", "read-only"}]
    assert [one.category for one in checked.findings] == ["layout"]


def only_the_second(x: Any, y: Any, z: Any) -> Any:
    """Refuse a reversed second argument of more than two elements."""
    if isinstance(y, np.ndarray) and y.ndim and y.strides[0] < 0 and len(y) > 2:
        raise RuntimeError("reversed")
    return x + y + z


def test_shrink__keeps_what_matters() -> None:
    """Of three reversed arrays of six numbers, one is reversed and each has three numbers."""
    recipes = [Recipe("numpy", np.arange(6.0) + n, properties=("reversed",)) for n in range(3)]
    failure = shrinking.fail(Call(only_the_second, tuple(recipes), {}, options={"errors": True}), "planted")
    assert failure is not None
    smallest, needed = shrinking.shrink(failure, "planted", NEVER)
    shapes = [one.values.shape for one in smallest.call.recipes()]
    assert shapes == [(3,)] * 3
    assert [one.properties for one in smallest.call.recipes()] == [(), ("reversed",), ()]
    assert needed == ["reversed"]


def test_shrink__stops_when_the_time_is_over() -> None:
    """Without time, the failure stays as it is."""
    call = Call(only_the_second, (Recipe("numpy", np.ones(6), properties=("reversed",)),) * 3, {}, options={})
    failure = shrinking.fail(call, "planted")
    assert failure is not None
    assert shrinking.shrink(failure, "planted", lambda: True)[0] == failure
    ends = iter([False, True, True])
    assert shrinking.shrink(failure, "planted", lambda: next(ends))[0].call.recipes()


def test_fail__names_the_line_of_the_package() -> None:
    """The line is the last one of the package, in a folder of its name or in a file."""
    failure = shrinking.fail(Call(planted.columns, (Recipe("numpy", np.ones(3)),), {}), "planted")
    assert failure is None  # NumPy's call raises too
    call = Call(planted.last, (Recipe("torch", np.ones(())),), {}, options={})
    if xbridge.is_available("torch"):
        found = shrinking.fail(call, "planted")
        assert found is not None
        assert found.line.startswith("planted.py:")
        elsewhere = shrinking.fail(call, "helpers")
        assert elsewhere is not None
        assert elsewhere.line == f"helpers/{found.line}"
        nowhere = shrinking.fail(call, "no_such_package")
        assert nowhere is not None
        assert nowhere.line == ""


def test_shrink__an_array_has_fewer_axes() -> None:
    """An axis that does not matter is taken away, and NaN is kept if it matters."""

    def refuses_missing(x: Any, *, is_reference: bool = False) -> Any:
        if not is_reference and np.isnan(x).any():
            raise RuntimeError("missing")
        return x

    values = np.ones((2, 3))
    values[1, 1] = np.nan
    call = Call(refuses_missing, (Recipe("numpy", values),), {}, lambda x: x, {})
    failure = shrinking.fail(call, "planted")
    assert failure is not None
    smallest, needed = shrinking.shrink(failure, "planted", NEVER)
    assert needed == ["NaN"]
    assert smallest.call.recipes()[0].values.size == 1


def test_run_draws__ends_when_the_time_is_over() -> None:
    """No call is made when no time is left."""
    made: list[Any] = []
    call = Call(planted.centred, (Recipe("numpy", np.arange(6.0)),), {})
    strategy = draws.calls_like([("", call)], (), special=True)
    draws.run_draws(strategy, made.append, 0, 30, lambda: True)
    assert made == []
    draws.run_draws(strategy, made.append, 0, 60, NEVER)
    values = [one.values for _, each in made for one in each.recipes()]
    assert any(not np.isfinite(x).all() for x in values)
    assert len({x.shape for x in values}) > 1
    assert {x.dtype.name for x in values} == {"float64", "float32"}


def test_calls_like__integers_of_a_function_without_arrays_are_drawn() -> None:
    """Integers are changed, and other arguments are not."""
    made: list[Any] = []
    call = Call(planted.centred, (3, "word"), {"n": 2, "flag": True})
    draws.run_draws(draws.calls_like([("", call)], (), special=False), made.append, 0, 20, NEVER)
    assert len({one.args[0] for _, one in made}) > 1
    assert {(one.args[1], one.kwargs["flag"]) for _, one in made} == {("word", True)}


def test_is_as_described__some_properties_exclude_others() -> None:
    """A recipe whose array has other values is noticed."""
    right = Recipe("numpy", np.ones(2), properties=("unaligned", "byte-swapped"))
    wrong = right._replace(properties=("byte-swapped", "unaligned"))
    assert draws.is_as_described(Call(planted.centred, (right,), {}))
    assert not draws.is_as_described(Call(planted.centred, (wrong,), {}))


# -- arguments -----------------------------------------------------------------------------------


def exemplary(x: Any, window: Any) -> Any:
    if not isinstance(window, tuple):
        raise TypeError("no")
    return x * window[1]


EXAMPLES = """Take a window that its name does not show.

>>> import matplotlib.pyplot as plt
>>> rng = np.random.default_rng()
>>> window = ("kaiser", 4.0)
>>> exemplary(rng.normal(size=100), window)
>>> exemplary([1.0, 2.0], window=window)
>>> exemplary(np.ones(3), len)
>>> exemplary(["a"], {"b": range(2)})
>>> exemplary(np.array(["a"]), None)
>>> this is not Python
"""


def test_calls_in_examples__gives_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of a docstring run, and what a program cannot show is left out."""
    monkeypatch.setattr(planted, "exemplary", exemplary, raising=False)
    monkeypatch.setattr(exemplary, "__doc__", EXAMPLES)
    calls = examples.calls_in_examples(exemplary, "planted", "exemplary")
    shown = [(type(args[0]), kwargs or args[1]) for args, kwargs in calls]
    assert shown == [
        (np.ndarray, ("kaiser", 4.0)),
        (list, {"window": ("kaiser", 4.0)}),
        (list, {"b": [0, 1]}),
    ]
    again = examples.calls_in_examples(exemplary, "planted", "exemplary")
    np.testing.assert_array_equal(calls[0][0][0], again[0][0][0])
    assert examples.calls_in_examples(planted.centred, "planted", "centred") == []
    monkeypatch.setattr(examples, "_SECONDS", -1.0)
    assert examples.calls_in_examples(exemplary, "planted", "exemplary") == []


def test_arguments_of__examples_are_run_and_their_arrays_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no guessed arguments work, those of an example are used, with shorter arrays."""
    monkeypatch.setattr(planted, "exemplary", exemplary, raising=False)
    monkeypatch.setattr(exemplary, "__doc__", EXAMPLES)
    (target,) = targets.find_targets("planted:exemplary")
    _, found = search.arguments_of(target, {}, ["numpy"])
    assert [base.args[0].shape for base in found] == [(4,), (2,)]


def test_arguments_of__functions_of_torch_are_compared_with_themselves() -> None:
    """torch.linalg has no signatures; the operators' table has them."""
    pytest.importorskip("torch")
    (target,) = targets.find_targets("torch.linalg:solve")
    found, bases = search.arguments_of(target, {}, ["numpy", "torch"])
    assert (found.backend, len(bases) > 0) == ("torch", True)
    checked = check_one("torch.linalg:solve", ["numpy", "torch"], Options(draws=5, each=20.0))
    assert (checked.findings, checked.skipped, checked.backends) == ([], "", ("torch",))
    alone = check_one("torch.linalg:solve", ["numpy"])
    assert alone.skipped == "no arguments were found with which it works; try --args"


def test_arguments_of__functions_of_jax_are_called_with_its_arrays() -> None:
    """A function that turns arrays of NumPy into those of JAX counts as one of JAX."""
    pytest.importorskip("jax")
    (target,) = targets.find_targets("jax.nn:relu")
    found, bases = search.arguments_of(target, {}, ["numpy", "jax"])
    assert (found.backend, len(bases) > 0) == ("jax", True)
    assert check_one("jax.nn:relu", ["numpy"]).skipped.startswith("it takes arrays of jax alone")


def test_on_plain_arrays__converts_at_any_depth() -> None:
    """NumPy's arrays in lists and tuples are replaced."""
    pytest.importorskip("torch")
    taken = native.on_plain_arrays(lambda *args, **kwargs: (args, kwargs), "torch")
    args, kwargs = taken([np.ones(2)], 3, key=(np.ones(1),))
    assert native.library_of(args) == native.library_of(kwargs) == "torch"
    assert args[1] == 3
    assert native.library_of(3) == ""


def test_find_targets__methods_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method is called on a new object, with the arguments of its class first."""

    class Scaler:
        def __init__(self, factor: Any) -> None:
            self.factor = factor

        def scale(self, x: Any, factor: Any) -> Any:
            if planted.is_torch(x) and x.is_neg():
                raise RuntimeError("a pending negation")
            return x * self.factor + factor

        def state(self) -> None:
            pass

        @staticmethod
        def double(x: Any) -> Any:
            return x * 2

        @classmethod
        def triple(cls, x: Any) -> Any:
            return x * 3

    for cls in (Scaler, Scaler.scale, Scaler.state, vars(Scaler)["double"], vars(Scaler)["triple"]):
        monkeypatch.setattr(cls, "__module__", "planted")
    monkeypatch.setattr(planted, "Scaler", Scaler, raising=False)
    double, target, triple = targets.find_targets("planted:Scaler")
    assert [(one.spec, one.code) for one in (double, triple)] == [
        ("planted:Scaler.double", "f = Scaler.double"),
        ("planted:Scaler.triple", "f = Scaler.triple"),
    ]
    assert target.spec == "planted:Scaler.scale"
    assert targets.find_targets("planted:Scaler.scale")[0].spec == target.spec
    assert "planted.Scaler.scale" in [one.name for one in targets.find_targets("planted")]
    pytest.importorskip("torch")
    checked = check_one("planted:Scaler.scale", ["numpy", "torch"], Options(draws=5, each=20.0))
    (found,) = [one for one in checked.findings if one.category == "layout"]
    assert found.needed == ("neg",)
    assert "f = lambda factor_, *args, **kwargs: Scaler(factor_).scale(*args, **kwargs)" in found.program
    with pytest.raises(RuntimeError, match="a pending negation"):
        exec(found.program, {})


# -- triage --------------------------------------------------------------------------------------


def test_read_classes__adds_those_that_are_off() -> None:
    """The classes with low yield are off, until they are named."""
    assert triage.read_classes("") == triage.DEFAULT
    assert "lazy" in triage.read_classes("lazy")
    assert triage.read_classes("all") == tuple(triage.CLASSES)
    with pytest.raises(xbridge.OptionError, match="; try derivatives, special-values"):
        triage.read_classes("nothing")


@pytest.mark.parametrize(
    ("changed", "category", "severity"),
    [
        ({"problem": "ends the process", "group": "crash"}, "crash", "critical"),
        ({"problem": "changes its input"}, "input", "high"),
        ({"problem": "dtype"}, "dtypes", "low"),
        ({"needed": ("NaN",), "group": "draws"}, "special-values", "low"),
        ({"group": "draws", "problem": "values"}, "values", "high"),
        ({"group": "shape", "needed": ("no elements",)}, "special-values", "low"),
        ({"group": "derived", "needed": ("requires_grad",), "problem": "cuts the graph"}, "gradient", "high"),
        ({"group": "derived", "needed": ("lazy arrays",)}, "lazy", "low"),
        ({"group": "dtype", "needed": ("int8 wrap-around",), "problem": "values"}, "overflow", "high"),
        ({"group": "precision", "needed": ("large integers",), "problem": "values"}, "overflow", "high"),
        ({}, "layout", "medium"),
    ],
)
def test_classify__by_the_problem_and_the_property(
    changed: dict[str, Any], category: str, severity: str
) -> None:
    """Each finding has a class and a severity."""
    found = triage.classify(finding("")._replace(**changed), is_optional=False)
    assert (found.category, triage.severity_of(found)) == (category, severity)


def test_classify__an_optional_argument() -> None:
    """What fails for plain arrays with an optional argument is off by default."""
    plain = finding("")._replace(group="plain", needed=("axis=",))
    assert triage.classify(plain, is_optional=True).category == "options"
    assert triage.classify(plain, is_optional=False).category == "plain"


LIBRARIES = ("numpy", "torch", "jax")


_REFUSED = "2 of 3 functions refuse its arrays or compute in another library"


def test_unsupported__numbers_say_nothing() -> None:
    """A function that returns numbers alone is no evidence that its module takes the arrays of a library."""
    pytest.importorskip("array_api_strict")
    checked = [
        Checked(name, [finding("plain", function=name)], "", backends=("torch",)) for name in ("f", "g")
    ]
    checked += [Checked(name, [], "", backends=("torch",)) for name in ("size", "level", "order")]
    assert list(triage.unsupported(checked)) == ["torch"]
    returned = [
        check_one(name, ["numpy", "array_api_strict"], Options(draws=0, each=20.0)).returned
        for name in ("planted:softmax", "kit_mistakes:largest")
    ]
    assert returned == [("numpy", "array_api_strict"), ()]


def test_unsupported__most_functions_fail() -> None:
    """A library that most functions of a module refuse counts as unsupported by the module."""

    def result(name: str, *fails: str) -> Checked:
        failed = [finding("plain", function=name)._replace(backend=one) for one in fails]
        return Checked(name, failed, "", backends=LIBRARIES, returned=LIBRARIES)

    checked = [result("f", "torch", "jax"), result("g", "torch"), result("h")]
    assert triage.unsupported(checked) == {"torch": _REFUSED}
    assert triage.unsupported(checked[:1]) == {}


def test_unsupported__most_functions_compute_in_numpy() -> None:
    """What takes a tensor only because NumPy does has not promised another device, or a pending negation."""
    messages = (
        "TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.",
        "RuntimeError: Can't call numpy() on Tensor that has negative bit set.",
        "RuntimeError: Expected all tensors to be on the same device",
    )

    def result(name: str, message: str) -> Checked:
        failed = finding("device", function=name)._replace(backend="torch", message=message)
        return Checked(name, [failed], "", backends=LIBRARIES, returned=LIBRARIES)

    assert triage._IN_NUMPY.search("Can't convert array on the 'device1' device to a NumPy array.")
    checked = [result(*pair) for pair in zip("fgh", messages, strict=True)]
    assert triage.unsupported(checked) == {"torch": _REFUSED}
    assert triage.unsupported(checked[1:]) == {}


def test_unsupported__most_functions_are_of_one_library() -> None:
    """A module of functions for JAX alone does not take NumPy's arrays, even if one of them happens to."""
    alone = [Checked(name, [], "", backends=("jax",), returned=("jax",)) for name in "fg"]
    checked = [*alone, Checked("h", [], "", backends=LIBRARIES, returned=LIBRARIES)]
    assert triage.unsupported(checked) == dict.fromkeys(("numpy", "torch"), _REFUSED)
    assert triage.unsupported([*alone, *alone]) == {}


def test_shown__functions_that_are_written_for_a_library() -> None:
    """A finding with a library that the module does not take is shown if the function is written for it."""
    one = finding("gradient", function="f")._replace(backend="torch")
    checked = [
        Checked("f", [one], ""),
        Checked("g", [one._replace(function="g")], "", meant=("torch",)),
    ]
    assert [each.function for each in triage.shown(checked, {"torch"})] == ["g"]
    assert [each.function for each in triage.shown(checked, {"dask"})] == ["f", "g"]


def test_named_among__libraries_that_code_is_written_for() -> None:
    """Code is written for a library that it names, and for all of them if it asks for a namespace."""
    pytest.importorskip("torch")
    assert targets.named_among(["numpy", "torch"], {"torch", "view"}) == ["torch"]
    assert targets.named_among(["numpy", "torch"], {"array_namespace"}) == ["numpy", "torch"]


def test_write_tests__leaves_out_refused_libraries() -> None:
    """A written test runs with the libraries that its module takes, or its function is written for."""
    test = "@pytest.mark.parametrize('backend', {backends})"
    checked = [
        Checked("f", [], "", backends=LIBRARIES, test=test),
        Checked("g", [], "", backends=LIBRARIES, meant=("torch",), test=test),
    ]
    text = ghostwriting.write_tests(checked, [], {"torch": "refused"})
    assert text.count("['numpy', 'jax']") == text.count("['numpy', 'torch', 'jax']") == 1


def test_line_of_definition__of_the_package_alone() -> None:
    """A function is where it is defined, if that is in the package, whatever is wrapped around it."""
    f = cache(planted.in_place)
    number = planted.in_place.__code__.co_firstlineno
    assert shrinking.line_of_definition(f, "planted") == f"planted.py:{number}"
    assert shrinking.line_of_definition(f, "helpers") == f"helpers/planted.py:{number}"
    assert shrinking.line_of_definition(f, "numpy") == shrinking.line_of_definition(np.add, "numpy") == ""


def test_grouped__lines_of_definitions_are_no_causes() -> None:
    """One refusal in two functions is one cause, though each is defined at a line of its own."""
    cuts = finding("derived")._replace(problem="cuts the graph", message="it has no graph")
    two = [cuts._replace(function=name, line=f"planted.py:{n}") for n, name in enumerate("fg")]
    assert len(grouped(two)) == 1


def test_grouped__small_integers_of_a_module_are_one_cause() -> None:
    """A module that computes in the dtype of its arguments has one line, which names all functions."""
    wraps = finding("dtype")._replace(problem="values", category="overflow", program="f(a)")
    names = ("m.f", "m.g", "n.f", "m.Filter.run")
    causes = [one for one, _ in grouped(wraps._replace(function=name) for name in names)]
    assert [one.title for one in causes] == ["m.f and 2 more", "n.f"]
    assert [one.program for one in causes] == ["f(a)\n# the same in g, Filter.run", "f(a)"]


# -- reports -------------------------------------------------------------------------------------


def test_as_text__ranks_causes_and_has_one_line_for_a_class_that_is_off() -> None:
    """Crashes come first, and the classes that are off come last with one line each."""
    found = [
        finding("special-values", function="m.g"),
        finding("layout", line="m.py:3"),
        finding("layout", function="m.h", line="m.py:3"),
        finding("crash", "ends the process"),
    ]
    table, *programs = reports.as_text(found).split("\n\n")
    lines = table.splitlines()
    assert [line.split()[0] for line in lines] == ["severity", "critical", "medium", "special-values"]
    assert "m.f and 1 more" in lines[2]
    assert lines[2].endswith("m.py:3")
    assert lines[3].endswith(": m.g")
    assert len(programs) == 2


def test_member__of_a_module_or_a_class() -> None:
    """A function has its own name, and a method that of its class too, in any module."""
    names = ["m.f", "my_mod.f", "m.Filter.run", "f", "<lambda>"]
    assert list(map(member, names)) == ["f", "f", "Filter.run", "f", "<lambda>"]


def test_baseline__has_what_is_known(tmp_path: Path) -> None:
    """The identity of a finding does not depend on its library, line or program."""
    path = tmp_path / "baseline.json"
    reports.write_baseline(path, [finding("layout")])
    known = reports.read_baseline(path)
    assert reports.identify(finding("layout", line="m.py:9")._replace(backend="jax", program="")) in known
    assert reports.identify(finding("device")) not in known
    assert reports.identify(finding("layout")._replace(needed=("transposed",))) in known
    assert reports.identify(finding("layout")._replace(group="axis")) not in known
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(xbridge.OptionError, match="; try --update-baseline"):
        reports.read_baseline(path)


def test_as_junit__has_a_test_for_each_function() -> None:
    """A function fails for each finding, and is skipped if it was not called."""
    checked = [Checked("m.f", [], ""), Checked("m.g", [], "why"), Checked("m.h", [], "")]
    suite = ET.fromstring(reports.as_junit(checked, [finding("layout")], {"cupy": "no"}))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    properties, *cases = suite
    assert [one.attrib for one in properties] == [{"name": "left out: cupy", "value": "no"}]
    assert [[part.tag for part in case] for case in cases] == [["failure"], ["skipped"], []]


def test_as_junit__any_message() -> None:
    """Control characters, which XML cannot contain, and lone surrogates are escaped."""
    checked = [Checked("m.f", [], ""), Checked("m.g", [], "\x1b[31m ]]> \ud800\r\n")]
    text = reports.as_junit(checked, [finding("layout", "a\x00b")._replace(program="x\n# \x08 é")], {})
    _, (failure,), (skipped,) = ET.fromstring(text.encode())
    assert (failure.text, (failure.get("message") or "")[:6]) == ("x\n# \\x08 é", "a\\x00b")
    assert skipped.get("message") == "\\x1b[31m ]]> \\ud800\r\n"


def test_as_annotations__names_a_file_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the folder is named with its line, and line breaks are escaped."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "m.py").write_text("", encoding="utf-8")
    found = [finding("layout", line="m.py:3"), finding("dtypes")]
    first, last = reports.as_annotations([], found, {}).splitlines()
    assert first.startswith("::error file=src/m.py,line=3,title=m.f::raises E: neg (torch)%0Af(a)")
    assert last.startswith("::notice title=m.f::")


def test_as_annotations__names_what_was_left_out() -> None:
    """A library that is left out is a notice, and a function that needs it a warning."""
    checked = [Checked("m.f", [], "it needs cupy", lacks=True), Checked("m.g", [], "other")]
    assert reports.as_annotations(checked, [], {"cupy": "is: missing"}).splitlines() == [
        "::notice title=cupy is left out::is: missing",
        "::warning title=m.f::not checked, because it needs cupy",
    ]


# -- the command ---------------------------------------------------------------------------------


@pytest.fixture
def _one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find one failure in the one function that they check."""
    test = "@pytest.mark.parametrize('backend', ['numpy'])\ndef test_it(backend): 1 / 0\n"
    one = Checked("planted.middle", [finding("layout", function="planted.middle")], "", test=test)
    passing = Checked("planted.cut", [], "", test=test.replace("test_it", "test_other"))
    monkeypatch.setattr(workers, "find_names", lambda spec: {spec: []})
    monkeypatch.setattr(workers, "check_in_workers", lambda *_: iter([one, passing]))


@pytest.mark.usefixtures("_one_finding")
def test_check__formats(capsys: pytest.CaptureFixture[str]) -> None:
    """The findings are printed as text, JSON, JUnit's XML or annotations."""
    begins = {"text": "severity", "json": "{", "junit": "<?xml", "github": "::error title=planted.middle"}
    for name, begin in begins.items():
        assert main(["check", "planted:middle", "--format", name]) == 1
        assert capsys.readouterr().out.startswith(begin)


@pytest.mark.usefixtures("_one_finding")
def test_check__baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A finding that the baseline has is no failure."""
    path = tmp_path / "baseline.json"
    assert main(["check", "planted:middle", "--baseline", str(path)]) == 2
    assert main(["check", "planted:middle", "--update-baseline"]) == 2
    assert main(["check", "planted:middle", "--baseline", str(path), "--update-baseline"]) == 0
    assert main(["check", "planted:middle", "--baseline", str(path)]) == 0
    assert "1 failures are in the baseline" in capsys.readouterr().out


@pytest.mark.usefixtures("_one_finding")
def test_check__write(tmp_path: Path) -> None:
    """The tests are written, and those of functions with findings are expected to fail."""
    path = tmp_path / "test_planted.py"
    assert main(["check", "planted:middle", "--write", str(path)]) == 1
    written = path.read_text(encoding="utf-8")
    assert written.count("xfail(strict=False, reason='raises E')") == 1
    assert {"test_it", "test_other"} <= {*runpy.run_path(str(path))}


@pytest.mark.slow
def test_write_test__passes_for_a_right_function(tmp_path: Path) -> None:
    """The test of a function runs by itself, with drawn floating arrays and with other ones."""
    checked = [check_one(f"planted:{name}", ["numpy"], Options(draws=0)) for name in ("centred", "clusters")]
    path = tmp_path / "test_written.py"
    path.write_text(ghostwriting.write_tests(checked, []), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(
        command, cwd=tmp_path, env={**_environment()}, capture_output=True, text=True, check=False
    )
    assert "2 passed" in done.stdout, done.stdout


def _environment() -> dict[str, str]:
    import os

    paths = (Path(planted.__file__).parent, Path(xbridge.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}


def test_as_dict__says_what_is_new() -> None:
    """JSON has the class, the severity and the identity of a finding, and whether the baseline has it."""
    one = finding("layout")
    shown = reports.as_dict([Checked("m.g", [], "why")], [one], {reports.identify(one)}, {"cupy": "no"})
    (row,) = json.loads(json.dumps(shown))["findings"]
    assert (row["category"], row["severity"], row["new"], row["backends"]) == (
        "layout",
        "medium",
        False,
        ["torch"],
    )
    assert shown["skipped"] == {"m.g": "why"}
    assert shown["left_out"] == {"cupy": "no"}
