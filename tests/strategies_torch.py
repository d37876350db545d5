"""Hypothesis strategies for tensors: every dtype, layout, pending operation and relation to a graph."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest
from hypothesis import note
from hypothesis import strategies as st
from rawmemory import tensor_of
from strategies import contents, every, seeds, shapes

from xbridge._dtypes import DTYPES, is_inexact

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from strategies import Shape
    from torch import Tensor, dtype

    Fresh: TypeAlias = Callable[[Shape], Tensor]

TORCH_DTYPES = tuple(word for word in DTYPES if hasattr(torch, word))
TRACKED = ("leaf", "view of a leaf", "parameter")
STATES = ("plain", "inference", *TRACKED)


def torch_dtype(word: str) -> dtype:
    """torch's dtype of a canonical name."""
    found: dtype = getattr(torch, word)
    return found


def new_tensor(word: str, shape: Shape, rng: np.random.Generator) -> Tensor:
    """A dense tensor of any bits that are values of the dtype."""
    host = contents(word, shape, rng)
    raw = host.reshape(-1).view(np.uint8).reshape((*shape, host.itemsize))
    tensor: Tensor = tensor_of(raw, torch_dtype(word))
    return tensor


# -- layouts -------------------------------------------------------------------------------------


def _transposed(fresh: Fresh, shape: Shape) -> Tensor:
    return fresh(shape[::-1]).permute(tuple(reversed(range(len(shape)))))


def _channels_last(fresh: Fresh, shape: Shape) -> Tensor:
    return fresh((*shape[:1], *shape[2:], *shape[1:2])).movedim(-1, 1) if len(shape) > 1 else fresh(shape)


def _every_second(fresh: Fresh, shape: Shape) -> Tensor:
    return fresh(tuple(2 * n for n in shape))[every(slice(None, None, 2), shape)]


def _behind_first(fresh: Fresh, shape: Shape) -> Tensor:
    return fresh(tuple(n + 1 for n in shape))[every(slice(1, None), shape)]


def _expanded(fresh: Fresh, shape: Shape) -> Tensor:
    return fresh(tuple(n if axis % 2 else 1 for axis, n in enumerate(shape))).expand(shape)


def _unfolded(fresh: Fresh, shape: Shape) -> Tensor:
    return fresh((sum(shape) + 1,)).as_strided(shape, (1,) * len(shape))


SETTLED: dict[str, Callable[[Fresh, Shape], Tensor]] = {
    "contiguous": lambda fresh, shape: fresh(shape),
    "transposed": _transposed,
    "channels-last": _channels_last,
    "strided": _every_second,
    "offset": _behind_first,
    "expanded": _expanded,
    "unfolded": _unfolded,
}
PENDING: dict[str, Callable[[Fresh, Shape], Tensor]] = {
    "conj": lambda fresh, shape: fresh(shape).conj(),
    "neg": lambda fresh, shape: fresh(shape).conj().imag,
}
_PARENTS = {"float32": "complex64", "float64": "complex128"}
"""Whose imaginary part a negated tensor is."""


def _can_have(layout: str, state: str, word: str) -> bool:
    """Whether torch can make such a tensor of the dtype."""
    if layout in PENDING and word not in (_PARENTS.values() if layout == "conj" else _PARENTS):
        return False
    return state not in TRACKED or is_inexact(word)


@st.composite
def tensors(
    draw: st.DrawFn,
    dtypes: Sequence[str] = TORCH_DTYPES,
    layouts: Sequence[str] = (*SETTLED, *PENDING),
    states: Sequence[str] = STATES,
) -> Tensor:
    """Tensors in host memory, of any bits."""
    layout, state = draw(st.sampled_from(layouts)), draw(st.sampled_from(states))
    word = draw(st.sampled_from([word for word in dtypes if _can_have(layout, state, word)]))
    shape, rng = draw(shapes()), draw(seeds())
    parent = _PARENTS[word] if layout == "neg" else word

    def fresh(shape: Shape) -> Tensor:
        return new_tensor(parent, shape, rng).requires_grad_(state == "view of a leaf")

    with torch.inference_mode() if state == "inference" else nullcontext():
        tensor = {**SETTLED, **PENDING}[layout](fresh, shape)
        if state == "view of a leaf":
            tensor = tensor[...]
        elif state == "leaf":
            tensor = tensor.requires_grad_()
        elif state == "parameter":
            tensor = torch.nn.Parameter(tensor)
    note(f"{layout} {state} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}")
    return tensor
