"""Run functions of JAX for others, and calls of other functions in the transforms of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xbridge.functions.jax.rules import refuse_inside as check_call
from xbridge.functions.jax.rules import rule_of as rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge.functions.rules import DerivableFunction

__all__ = ["check_call", "rule", "run"]


def run(rule: DerivableFunction, xs: list[Any]) -> Sequence[Any]:
    """Run a rule within JAX's current transforms."""
    from xbridge.functions.jax.calls import apply  # noqa: PLC0415 -- only a call of a function needs it

    return apply(rule, xs)
