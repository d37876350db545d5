"""The entry points of public functions, as the functions themselves see them."""

from __future__ import annotations

import pytest

import xbridge
from xbridge._core.entry_points import call_error, inner_entry_point


def test_inner_entry_point__requires_more_and_other() -> None:
    """Entry points must declare the parameters that collect surplus arguments."""

    def wrong(x: object) -> object:
        return x

    with pytest.raises(TypeError, match="wrong does not begin with more and other"):
        inner_entry_point(wrong)


def test_call_error__for_a_compiler_names_the_function() -> None:
    """What the compiler follows in place of `call_error` is the same kind of error."""
    error = vars(call_error)["_torchdynamo_inline"](xbridge.to_torch, (), {}, dtype=None)
    assert isinstance(error, xbridge.CallError)
    assert error.reason == "the arguments are not those of to_torch"
