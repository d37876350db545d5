"""The steps that plans consist of."""

from __future__ import annotations

from typing import get_args

import pytest
from facts import HOST

from xbridge._plan.steps import Op
from xbridge.protocol import Backend, Transfers


@pytest.mark.parametrize("op", get_args(Op))
def test_step__op_is_a_backend_or_host_function(op: str) -> None:
    """Every operation a step can name exists in the backend protocol, its transfers or `_host`."""
    assert op in vars(Backend) | vars(Transfers) or callable(getattr(HOST, op))
