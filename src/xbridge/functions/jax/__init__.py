"""Run functions of JAX for others, and calls of other functions in the transforms of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xbridge.functions.jax.callbacks import refuse_inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge.functions.rules import Call, DerivableFunction

check_call = refuse_inside


def rule(call: Call) -> DerivableFunction:
    """Make the rule of a function."""
    from xbridge.functions.jax.rules import rule_of  # noqa: PLC0415 -- only differentiated calls need it

    return rule_of(call)


def run(rule: DerivableFunction, xs: list[Any]) -> Sequence[Any]:
    """Run a rule within JAX's current transforms."""
    from xbridge.functions.jax.calls import apply  # noqa: PLC0415 -- only a call of a function needs it

    return apply(rule, xs)
