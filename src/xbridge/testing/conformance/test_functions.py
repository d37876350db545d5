"""Functions of other libraries: what the five names in `functions` of a backend promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from xbridge import backend_of, to_backend, to_numpy
from xbridge.errors import GradientError, OptionError
from xbridge.extend import HOST, get_backend
from xbridge.functions.libraries import functions_of
from xbridge.functions.rules import DerivableFunction, Spec, latest
from xbridge.functions.signature import parse_signature
from xbridge.functions.treedef import ARRAY
from xbridge.testing.conformance._calls import PlainCall
from xbridge.testing.conformance._cases import for_own_arrays
from xbridge.testing.conformance._probes import disjoint, memory_of

if TYPE_CHECKING:
    from typing import Any

    from xbridge.functions.libraries import LibraryFunctions
    from xbridge.protocol import Array
    from xbridge.testing.samples.model import Sample

VALUES = np.array([1.0, 2.0, 3.0], "f4")
SEED = np.array([2.0, -1.0, 0.5], "f4")


def _square(x: Any) -> Any:
    return x * x


def _call(library: str) -> PlainCall:
    """Make a call of the square, with its derivatives if the library has none."""
    bare = PlainCall(library, _square)
    rule = bare.rule()
    assert isinstance(rule, DerivableFunction)
    try:
        rule.derive("vjp", (True,), (True,), ARRAY)
    except GradientError:
        try:
            given = PlainCall(
                library, _square, vjp=lambda g, _, x: 2 * x * g, jvp=lambda t, _, x: 2 * x * t[0]
            )
            given.rule()
        except OptionError:
            return bare
        return given
    return bare


def _rule(backend: str) -> DerivableFunction:
    if _offered(backend).rule is None:
        pytest.skip("it has no rules of functions")
    return _call(backend).rule()


def _offered(backend: str) -> LibraryFunctions:
    return functions_of(get_backend(backend))


def _own(backend: str, values: Any) -> Array:
    return to_backend(np.array(values), backend)


def _host(found: Any) -> list[Any]:
    return [to_numpy(y).tolist() for y in found]


def test_a_rule_runs_its_function(backend: str) -> None:
    rule = _rule(backend)
    made = rule(_own(backend, VALUES))
    assert [backend_of(y) for y in made] == [backend]
    assert _host(made) == [[1.0, 4.0, 9.0]]
    assert latest.treedef == ARRAY
    pair = PlainCall(backend, lambda x: (x * x, x)).rule()
    assert _host(pair(_own(backend, VALUES))) == [[1.0, 4.0, 9.0], [1.0, 2.0, 3.0]]
    assert latest.treedef == ("tuple", None, ARRAY, ARRAY)


def test_a_rule_describes_what_it_returns(backend: str) -> None:
    rule = _rule(backend)
    try:
        found = rule.shapes((Spec((2, 3), "float32"),))
    except OptionError:  # a library that does not trace needs `signature` or `result`
        return
    assert found == (Spec((2, 3), "float32"),)
    assert latest.treedef == ARRAY


def test_the_derivatives_of_a_rule_are_right_or_refused(backend: str) -> None:
    rule = _rule(backend)
    x = _own(backend, VALUES)
    outputs = rule(x)
    mark = np.asarray((rule.version(), 0, 0), "int32")  # of a run that was not recorded
    marks = [_own(backend, mark)] if rule.keeps_version else []
    kept = [*outputs, *marks, x] if rule.wants_outputs else [*marks, x]
    for how in ("vjp", "jvp"):
        try:
            derived = rule.derive(how, (True,), (True,), ARRAY)
        except GradientError:
            continue
        assert derived.order == 1
        assert rule.derive(how, (True,), (True,), ARRAY) is derived
        assert _host(derived(_own(backend, SEED), *kept)) == [(2 * VALUES * SEED).tolist()]


def test_a_batch_of_a_rule_is_one_call_for_each_example(backend: str) -> None:
    rule = _rule(backend)
    batch = rule.derive("batched", (0,))(_own(backend, np.stack([VALUES, SEED])))
    assert _host(batch) == [[(VALUES**2).tolist(), (SEED**2).tolist()]]


def test_a_function_may_be_called_outside_of_callbacks(backend: str) -> None:
    check = _offered(backend).check_call
    if check is None:
        pytest.skip("its functions run anywhere")
    assert check("f") is None, "it raises, or returns nothing"


def test_modes_are_compared(backend: str) -> None:
    modes = _offered(backend).modes
    if modes is None:
        pytest.skip("its functions are the same in every thread")
    assert {modes()} == {modes()}


@for_own_arrays
def test_only_what_a_graph_holds_is_followed(backend: str, sample: Sample) -> None:
    follows = get_backend(backend).follows
    if follows is not None:
        assert follows(sample.array) is sample.tracked


@pytest.mark.parametrize("name", ["run", "trace"])
def test_a_caller_runs_a_rule_of_another_library(backend: str, name: str) -> None:
    module = _offered(backend)
    if getattr(module, name) is None:
        pytest.skip(f"it has no {name}")
    call = PlainCall(HOST, _square, signature=parse_signature("()->()"))
    rule, x = call.rule(), _own(backend, VALUES)
    run, trace = module.run, module.trace
    made = trace(rule.key, [x], []) if name == "trace" and trace else run(rule, [x]) if run else []
    assert [backend_of(y) for y in made] == [backend]
    assert _host(made) == [[1.0, 4.0, 9.0]]
    assert name == "trace" or latest.treedef == ARRAY
    assert _host([x]) == [VALUES.tolist()]


def test_the_result_of_a_run_has_memory_of_its_own(backend: str) -> None:
    run = _offered(backend).run
    if run is None or get_backend(backend).follows is None:
        pytest.skip("it does not run functions now")
    x = _own(backend, VALUES)
    (y,) = run(PlainCall(HOST, lambda x: x, signature=parse_signature("()->()")).rule(), [x])
    assert disjoint(memory_of(backend, y), memory_of(backend, x))
