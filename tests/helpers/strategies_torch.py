"""Tensors of any layout in any relation to a graph, which `xbridge.testing` draws apart from each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import note
from hypothesis import strategies as st
from inside import DTYPES

from xbridge.testing.strategies import arrays, samples

torch = pytest.importorskip("torch")

from xbridge.testing.samples.torch import cases  # noqa: E402 -- it imports torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, dtype

TORCH_DTYPES = tuple(word for word, it in DTYPES.items() if hasattr(torch, word) and not it.is_packed)
TRACKED = ("leaf", "view of a leaf", "parameter")
STATES = ("as laid", "inference", *TRACKED)


def torch_dtype(word: str) -> dtype:
    """torch's dtype of a canonical name."""
    found: dtype = getattr(torch, word)
    return found


@st.composite
def tensors(draw: st.DrawFn, layouts: Sequence[str] = tuple(cases), states: Sequence[str] = STATES) -> Tensor:
    """Tensors in host memory, of any bits."""
    plain = [name for name in layouts if cases[name].require_grad]
    state = draw(st.sampled_from([state for state in states if plain or state == "as laid"]))
    if state == "as laid":
        tensor: Tensor = draw(
            arrays("torch", devices="cpu", layouts=st.sampled_from(layouts), requires_grad="any", nan="any")
        )
        return tensor
    tracked = state in TRACKED
    sample = draw(samples("torch", devices="cpu", layouts=st.sampled_from(plain), requires_grad=tracked))
    note(state)
    tensor = sample.array
    if state == "inference":
        with torch.inference_mode():
            tensor = cases[sample.layout].make(sample.values)
    elif state == "view of a leaf":
        tensor = tensor[...]
    elif state == "parameter":
        tensor = torch.nn.Parameter(tensor.detach())
    return tensor
