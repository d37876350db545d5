"""The primitive by which JAX calls functions of other libraries."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

jax = pytest.importorskip("jax")

from xbridge.functions.jax import calls as _calls  # noqa: E402 -- only where the library is


@pytest.mark.parametrize("unknown", [False, True])
def test_keep_in_checkpoint__call_runs_once_on_the_side_that_knows_its_inputs(unknown: bool) -> None:
    """JAX is told to keep all results of a call that runs now, or all of one that waits for an input."""
    eqn = SimpleNamespace(invars=["x"], outvars=["y"])
    found = _calls._keep_in_checkpoint(None, [unknown], [False], eqn)
    assert found == ((None, eqn, [True], [True], ["x"]) if unknown else (eqn, None, [False], [False], []))


def test_linearizations__of_another_jax() -> None:
    """Where JAX has other rules, a gradient runs the function again."""
    assert _calls.linearizations(SimpleNamespace()) == ({}, None, False)
    other = SimpleNamespace(
        fallback_linearize_rule=lambda prim, nonzeros: None, primitive_linearizations={1: 2}
    )
    assert _calls.linearizations(other)[0] == {}
