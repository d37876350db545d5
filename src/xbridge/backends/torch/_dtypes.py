"""Torch's dtypes by name, and its default dtype at the call on behalf of which a thread converts."""

from __future__ import annotations

from threading import get_ident

import torch

from xbridge._core.dtypes import DTYPES
from xbridge._core.tracing import traced_as
from xbridge._host.memory import native_dtype

TORCH_BY_NAME = {
    word: getattr(torch, word)
    for word, facts in DTYPES.items()
    if hasattr(torch, word) and not facts.is_packed  # of which torch has the names alone
}
NAME_BY_TORCH = {dtype: word for word, dtype in TORCH_BY_NAME.items()}
BIT_DTYPES = {
    dtype: {1: torch.uint8, 2: torch.uint16}[dtype.itemsize]
    for word, dtype in TORCH_BY_NAME.items()
    if DTYPES[word].is_extended
}
DTYPE_OF = {native_dtype(word): dtype for word, dtype in TORCH_BY_NAME.items() if dtype not in BIT_DTYPES}
"""Torch's dtypes for NumPy's own, of which arrays share memory as they are."""

defaults_of_calls: dict[int, torch.dtype] = {}
"""The default dtype at the call for each thread that converts now; torch has one for all threads."""


@traced_as(lambda: torch.get_default_dtype())  # noqa: PLW0108 -- a compiler traces functions of Python
def default_dtype() -> torch.dtype:
    """Return torch's default dtype; that of the call in a thread that converts on its behalf."""
    return defaults_of_calls.get(get_ident()) or torch.get_default_dtype()
