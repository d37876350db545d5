"""Torch's default dtype, which is one for all threads, at the call on behalf of which a thread converts."""

from __future__ import annotations

from threading import get_ident

import torch

from xbridge._core.tracing import traced_as

defaults_of_calls: dict[int, torch.dtype] = {}
"""The default dtype at the call for each thread that converts now; torch has one for all threads."""


@traced_as(lambda: torch.get_default_dtype())  # noqa: PLW0108 -- a compiler traces functions of Python
def default_dtype() -> torch.dtype:
    """Return torch's default dtype; that of the call in a thread that converts on its behalf."""
    return defaults_of_calls.get(get_ident()) or torch.get_default_dtype()
