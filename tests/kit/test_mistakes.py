"""Mistakes of many kinds are found by `check`, or by a contract of one line, whatever the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kit_mistakes as mistakes
import numpy as np
import pytest
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st

import xbridge
from xbridge.testing import contract
from xbridge.testing._call import Call, program
from xbridge.testing._matches import MismatchError
from xbridge.testing._settings import Settings
from xbridge.testing.check import targets, triage
from xbridge.testing.check.relations import negative_axes, ufunc_methods
from xbridge.testing.check.search import Options, check
from xbridge.testing.check.stages import stages
from xbridge.testing.strategies import arrays

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge.testing.check.findings import Finding

SEEDS = (1, *(pytest.param(number, marks=pytest.mark.unmeasured) for number in (2, 3)))


@pytest.fixture(autouse=True)
def _first_use() -> Iterator[None]:
    """Each test begins without what another one has left, and leaves no setting changed."""
    xbridge.is_available("torch")  # which imports it, so that its settings are known
    before = Settings()
    yield
    before.restore()
    mistakes._WINDOW.clear()
    mistakes._LAST.clear()
    mistakes._places.cache_clear()


def found_in(name: str, backend: str, options: Options) -> list[Finding]:
    (one,) = check(targets.find_targets(f"kit_mistakes:{name}"), [backend], {}, 60.0, options=options)
    assert one.skipped == ""
    return one.findings


CHECKED: dict[str, tuple[str, str, str]] = {
    "byte_order": ("numpy", "layout", "values"),
    "memory_order": ("numpy", "layout", "values"),
    "centred": ("numpy", "layout", "raises ValueError"),
    "normalized": ("numpy", "input", "changes its input"),
    "repeated_weights": ("numpy", "layout", "values"),
    "rows": ("torch", "shape", "raises IndexError"),
    "flipped": ("numpy", "values", "values"),
    "largest": ("torch", "values", "values"),
    "first_window": ("numpy", "state", "depends on earlier calls"),
    "squares": ("numpy", "state", "changes an earlier result"),
    "places": ("numpy", "state", "depends on earlier calls"),
    "reseeded": ("numpy", "state", "changes a setting"),
    "silenced": ("numpy", "state", "changes a setting"),
    "in_double": ("torch", "state", "changes a setting"),
    "Scale.doubled": ("numpy", "input", "changes its input"),
    "Scale.raised": ("numpy", "input", "changes its input"),
}
"""The function -> the library that shows its mistake, the class, and the problem."""


@pytest.mark.slow
@pytest.mark.parametrize("number", SEEDS)
@pytest.mark.parametrize("name", CHECKED)
def test_check__finds_the_mistake_with_every_seed(name: str, number: int) -> None:
    """A mistake is found without options, and its program fails by itself."""
    backend, category, problem = CHECKED[name]
    pytest.importorskip(backend)
    before, options = Settings(), Options(seed=number, each=20.0)
    found = [one for one in found_in(name, backend, options) if one.category == category]
    assert problem in {one.problem for one in found}
    (program, *_) = [one.program for one in found if one.problem == problem]
    before.restore()
    with pytest.raises(Exception):  # noqa: B017 -- as the mistake has it
        exec(program, {})


CONTRACTS: dict[str, tuple[dict[str, Any], str]] = {
    "widened": ({"dtype": "kept"}, "dtype"),
    "positive": ({"aliases": False}, "aliases an argument"),
    "span": ({}, "raises ValueError for empty arrays"),
    "ramped": ({}, "is not safe in threads"),
    "greatest": ({"reference": np.max, "layouts": False, "repeatable": False}, "values"),
}
"""The function -> the promises that it breaks, and the problem."""


@pytest.mark.slow
@pytest.mark.parametrize("number", SEEDS)
@pytest.mark.parametrize("name", CONTRACTS)
def test_contract__finds_the_mistake_with_every_seed(name: str, number: int) -> None:
    """A mistake is found by a decorator, whatever Hypothesis draws first."""
    f, (promises, problem) = getattr(mistakes, name), CONTRACTS[name]
    numbers = st.sampled_from([1.0, 3.0, np.nan]) if name == "greatest" else st.floats(1, 9)
    dtype = "float32" if name == "widened" else "float64"
    drawn = arrays("numpy", dtypes=dtype, shapes=(3,), elements=numbers)
    quick = settings(max_examples=30, database=None, phases=[Phase.generate], deadline=None)

    @seed(number)
    @quick
    @contract(drawn, **promises)
    def test(x: Any) -> Any:
        return f(x)

    with pytest.raises(MismatchError) as caught:
        test()
    assert caught.value.finding.problem == problem


def test_check__finds_what_a_call_leaves_behind() -> None:
    """A buffer that is returned, and a setting, are of the class `state`."""
    for name, problem in (("squares", "changes an earlier result"), ("silenced", "changes a setting")):
        found, *others = found_in(name, "numpy", Options(draws=0))
        assert (found.category, found.problem, found.property) == ("state", problem, "another call")
        assert {(one.category, one.property) for one in others} <= {("state", "another thread")}


def test_check__derivatives_on_request() -> None:
    """A derivative that is not that of the values is found if it is asked for."""
    pytest.importorskip("torch")
    assert found_in("squared", "torch", Options(draws=0)) == []
    (found,) = found_in("squared", "torch", Options(triage.read_classes("derivatives"), draws=0))
    assert (found.category, found.problem) == ("derivatives", "gradient")
    assert "torch.autograd.gradcheck" in found.program


def test_unsafe__a_chosen_seed_is_repeatable() -> None:
    """A function that chooses its random numbers is called, and one that does not is not."""
    (seeded,), (jitter,) = (targets.find_targets(f"kit_mistakes:{one}") for one in ("reseeded", "unseeded"))
    assert targets.unsafe(seeded) == ""
    assert targets.unsafe(jitter) == "it may write, run or draw something"


def test_rules__range_of_a_dtype_is_no_overflow() -> None:
    """A function that reads the range of an integer dtype differs for the smallest integers too."""
    assert found_in("scaled", "numpy", Options(draws=0)) == []


# -- methods of ufuncs ---------------------------------------------------------------------------


def call_of(f: Any, *args: Any) -> Call:
    return Call.of(f, args, {}, None, {})


@pytest.mark.parametrize(("f", "count"), [(np.hypot, 4), (np.sqrt, 1)])
def test_ufunc_methods__agree_with_calls(f: Any, count: int) -> None:
    """What NumPy's methods give is what calls give, and their programs say so."""
    x = [np.array([0.5, 2.0, 3.0]), np.array([1.0, 4.0, 0.25])][: f.nin]
    found = [*ufunc_methods(call_of(f, *x))]
    assert len(found) == count
    for stage in found:
        assert stage.call.judge() is None
        exec(program(stage.call).text, {})


class Wrong:
    """A ufunc whose methods do something else than its calls."""

    def __call__(self, x: Any, y: Any) -> Any:
        return x + y

    def reduce(self, x: Any) -> Any:
        return sum(x) + 1

    def accumulate(self, x: Any) -> Any:
        raise TypeError("no such loop")


def test_ufunc_methods__find_another_result() -> None:
    """A method that gives another result is found, and one that refuses is not."""
    stages = {stage.label: stage.call for stage in ufunc_methods(call_of(np.add, np.ones(2), np.ones(2)))}
    found = stages["reduce"]._replace(f=Wrong()).judge()
    assert found is not None
    assert found.message == "gives [5.0, 5.0], and by calls alone [4.0, 4.0]"
    assert stages["accumulate"]._replace(f=Wrong()).judge() is None
    assert [*ufunc_methods(call_of(np.modf, np.ones(2)))] == []


# -- rules that tell mistakes from what is documented --------------------------------------------


def test_negative_axes__axis_of_the_result() -> None:
    """An axis that only the result has is counted from another end, and one that is ignored is not."""

    def ignores(x: Any, axis: int = 0) -> Any:
        return x.sum(axis) if axis in range(x.ndim) else x

    def axes(f: Any) -> list[int]:
        call = Call.of(f, (np.ones((2, 3)),), {"axis": 0}, None, {})
        return [stage.call.kwargs["axis"] for stage in negative_axes(call)]

    assert axes(np.expand_dims) == []
    assert axes(ignores) == [-2, -1]


def test_nudged__equal_numbers_stay_equal() -> None:
    """A result that depends on ties is not taken for one that depends on last bits."""
    call = call_of(np.argmax, np.array([3.0, 3.0, 0.5]))
    (together,) = (one.values for one in call.nudged(1, keep_ties=True).recipes())
    (apart,) = (one.values for one in call.nudged(1).recipes())
    assert together[0] == together[1] != 3.0
    assert apart[0] != apart[1]


def test_stages__one_element_has_no_column() -> None:
    """The second of two arrays becomes a column if it has two elements, and stays as it is if it has one."""

    def shapes(size: int) -> list[tuple[int, ...]]:
        call = call_of(np.add, np.ones(2), np.ones(size))
        made = {stage.label: stage.call for stage in stages(call, (), is_first=True)}["broadcasting"]
        return [one.values.shape for one in made.recipes()]

    assert shapes(2) == [(2,), (2, 1)]
    assert shapes(1) == [(2,), (1,)]
