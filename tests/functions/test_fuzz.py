"""Random programs of both libraries under random transforms; `make fuzz` draws others."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from random_programs import (
    LENGTH,
    OPERATIONS,
    SHAPES,
    Block,
    Case,
    cases,
    check,
    check_compiled,
    check_gradients,
)

pytest.importorskip("torch")
pytest.importorskip("jax")

pytestmark = pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
"""By torch itself, in `linearize`."""


@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.data())
@pytest.mark.parametrize("caller", ["torch", "jax"])
def test_aligned__random_programs_give_what_one_library_gives(caller: str, data: st.DataObject) -> None:
    """Values and derivatives of a program of several libraries are those of the program of one."""
    check(data.draw(cases(caller)))


@pytest.mark.slow
@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(cases("torch"))
def test_aligned__random_programs_are_compiled(case: Case) -> None:
    """A compiled program gives the value and the gradient of eager code, for any sizes."""
    check_compiled(case)


def seeded(seed: int, caller: str) -> Case:
    """A function of the other library: a chain of operations without transforms."""
    rng = Random(seed)
    operations = tuple(
        [(rng.choice([*OPERATIONS]), rng.choice((0.25, 0.5, 0.75))) for _ in range(rng.randint(1, 4))]
    )
    block = Block("other", rng.choice(SHAPES), operations)
    return Case(caller, (block,), (), tuple([rng.randint(-8, 8) / 8 + 1 / 16 for _ in range(LENGTH)]))


@pytest.mark.parametrize(
    "number", [n if n < 3 else pytest.param(n, marks=pytest.mark.slow) for n in range(50)]
)
@pytest.mark.parametrize("caller", ["torch", "jax"])
def test_aligned__random_functions_pass_the_checks_of_derivatives(caller: str, number: int) -> None:
    """`gradcheck` and `gradgradcheck` of torch, and `check_grads` of JAX up to the second order."""
    check_gradients(seeded(number, caller))
