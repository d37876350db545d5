"""The entry points of public functions, as the functions themselves see them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import xbridge
from xbridge._core.entry_points import MISSING, after_lookup, call_error, plan_call


def test_after_lookup__call_beyond_the_parameters_is_not_planned() -> None:
    """A function of the fast path hands what its declared function does not have to an error."""
    planned = []

    def look_up(x: Any = MISSING, /, *more: Any, scale: Any = None, **other: Any) -> Any:
        return plan_call(declared, (x,), more, other, scale=scale)

    @after_lookup(look_up)
    def declared(x: object, /, *, scale: object = None) -> None:
        """What it is for."""
        planned.append((x, scale))

    declared(1, scale=2)
    call: Any = declared
    for args, options in (((), {}), ((1, 2), {}), ((1,), {"skale": 2})):
        with pytest.raises(xbridge.CallError, match=r"declared\(x(, scale=2)?\)$"):
            call(*args, **options)
    assert planned == [(1, 2)]
    assert declared.__doc__ == "What it is for."
    assert str(inspect.signature(declared)) == "(x: 'object', /, *, scale: 'object' = None) -> 'None'"


def test_call_error__for_a_compiler_names_the_function() -> None:
    """What the compiler follows in place of `call_error` is the same kind of error."""
    error = vars(call_error)["_torchdynamo_inline"](xbridge.to_torch, (), {"dtype": None})
    assert isinstance(error, xbridge.CallError)
    assert error.reason == "the arguments are not those of to_torch"
