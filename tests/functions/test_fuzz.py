"""Random programs of both libraries under random transforms; `make hunt` draws others."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_programs import Case, cases, check, check_compiled, check_gradients

pytest.importorskip("torch")
pytest.importorskip("jax")

pytestmark = pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
"""By torch itself, in `linearize`."""

few = settings(max_examples=settings().max_examples // 5, suppress_health_check=[HealthCheck.too_slow])
callers = pytest.mark.parametrize("caller", ["torch", "jax"])


@few
@given(st.data())
@callers
def test_aligned__random_programs_give_what_one_library_gives(caller: str, data: st.DataObject) -> None:
    """Values and derivatives of a program of several libraries are those of the program of one."""
    check(data.draw(cases(caller)))


@pytest.mark.slow  # the checks run a program for each direction, and JAX compiles each
@settings(few, max_examples=50)
@given(st.data())
@callers
def test_aligned__random_functions_pass_the_checks_of_derivatives(caller: str, data: st.DataObject) -> None:
    """`gradcheck` and `gradgradcheck` of torch, and `check_grads` of JAX up to the second order."""
    check_gradients(data.draw(cases(caller)))


@pytest.mark.slow  # it compiles and exports each
@settings(few, phases=[Phase.explicit, Phase.generate])
@given(cases("torch"))
def test_aligned__random_programs_are_compiled(case: Case) -> None:
    """A compiled program gives the value and the gradient of eager code, for any sizes."""
    check_compiled(case)
