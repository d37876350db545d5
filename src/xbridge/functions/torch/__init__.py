"""Run functions of torch for others, and calls of other functions in the graphs and programs of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from xbridge.extend import get_backend
from xbridge.functions.torch.private import any_autocast_enabled, autocast_dtypes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge.functions.rules import Call, DerivableFunction


def rule(call: Call) -> DerivableFunction:
    """Make the rule of a function."""
    from xbridge.functions.torch.rules import ValueRule  # noqa: PLC0415 -- only differentiated calls need it

    return ValueRule(call)


def modes() -> object:
    """Return the default dtype, and the dtypes of autocast if it is on."""
    autocast = tuple(autocast_dtypes().items()) if any_autocast_enabled() else ()
    return torch.get_default_dtype(), autocast


def run(rule: DerivableFunction, xs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Run a rule on tensors, which are moved to the device of the first that is tracked."""
    from xbridge.functions.torch.calls import apply, move_to_device_of  # noqa: PLC0415 -- as above

    follows = get_backend("torch").follows
    if follows and len(xs) > 1 and len({x.device for x in xs}) > 1:
        return apply(rule, move_to_device_of(xs, [*map(follows, xs)].index(True)))
    return apply(rule, xs)


def trace(key: str, xs: list[torch.Tensor], numbers: list[Any]) -> Sequence[torch.Tensor]:
    """Add a call to the program that is traced."""
    from xbridge.functions.torch.calls import call_by_key  # noqa: PLC0415 -- as above

    return call_by_key(key, xs, numbers)
