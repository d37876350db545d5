"""The traps of docs/how-to/migrate.md, which go wrong by hand: each is a look at what a conversion does.

A look takes a function that converts to the trap's library. It returns what a test compares: values, or
whether something was written.
"""

from __future__ import annotations

import array
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Convert = Callable[..., Any]

DOUBLES = array.array("d", [0.1, 2.0])
MASKED = np.ma.masked_array([1.0, 2.0], mask=[False, True])
BRAIN = torch.tensor([0x3F80, 0x7FC1], dtype=torch.int16).view(torch.bfloat16)
BRAIN_BYTES = BRAIN.view(torch.int16).numpy().tobytes()


def outcome(do: Callable[..., Any], *args: Any) -> object:
    """What a function returns, or the class of what it raises."""
    try:
        return do(*args)
    except (TypeError, ValueError, RuntimeError, OverflowError, BufferError, AttributeError) as error:
        return type(error)


def jnp() -> Any:
    return import_module("jax.numpy")


def locked(a: Any) -> Any:
    a.flags.writeable = False
    return a


def written(x: Any, convert: Convert) -> list[float]:
    """The source, after a write to what a conversion has made of it, if that can be written."""
    made = convert(x)
    with suppress(ValueError):  # it is read-only
        made.fill_(7) if isinstance(made, torch.Tensor) else made.fill(7)
    return x.tolist()  # type: ignore[no-any-return] # of any library


def on_another_device(convert: Convert) -> str:
    with torch.device("meta"):
        return str(convert(np.ones(3)).device.type)


def without_gradients(convert: Convert) -> list[object]:
    """Whether the view of a leaf can be written, with gradients and without them."""
    leaf = torch.ones(3, requires_grad=True)

    def is_writable() -> bool:
        view = convert(leaf)
        assert view.ctypes.data == leaf.data_ptr()
        return bool(view.flags.writeable)

    found = []
    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            found.append(outcome(is_writable))
    return found


def gradient(convert: Convert) -> list[float]:
    """A gradient, after a write to what was made of a value that it needs."""
    w = torch.zeros(3, requires_grad=True)
    y = w.exp()
    written(y, convert)
    y.sum().backward()  # type: ignore[no-untyped-call] # theirs
    assert w.grad is not None
    return w.grad.tolist()


def snapshot(convert: Convert) -> list[float]:
    w = torch.ones(3, requires_grad=True)
    kept = convert(w)
    with torch.no_grad():
        w -= 0.5  # as an optimizer would
    return kept.tolist()  # type: ignore[no-any-return] # of NumPy


def is_tracked_in_list(convert: Convert) -> bool:
    leaf = torch.ones(2, requires_grad=True)
    return bool(convert([leaf[0], leaf[1]]).requires_grad)


def unfinished(convert: Convert) -> bool:
    """Whether a write to pinned memory after a call reaches its result."""
    p = torch.zeros(1 << 26 if torch.cuda.is_available() else 1 << 6).pin_memory()
    made = convert(p)
    p.fill_(7)
    return bool(made.any().item())


def aligned_alias(convert: Convert) -> list[float]:
    """What JAX has made of memory to which it could refer, at a multiple of 64, after a write to it."""
    whole = np.zeros(64 + 24, "uint8")
    start = -whole.ctypes.data % 64
    a = whole[start : start + 24].view("float32")
    made = import_module("jax").block_until_ready(convert(a))
    a[:] = 7
    return made.tolist()  # type: ignore[no-any-return] # of JAX


def wrapped(convert: Convert) -> Any:
    with import_module("jax").enable_x64(False):
        return convert(np.array([2**40 + 1])).tolist()


def dask_runs(compute: Callable[[Any, Any], object]) -> int:
    """How often a task that two arrays have in common is run."""
    runs: list[int] = []

    def load(chunk: Any) -> Any:
        runs.append(1)
        return chunk

    common = import_module("dask.array").ones(3).map_blocks(load, meta=np.empty(0))
    compute(common + 1, common * 2)
    return len(runs)


class Trap(NamedTuple):
    """The library that a trap converts to, and what is seen of a conversion."""

    target: str
    look: Callable[[Convert], Any]


TRAPS = {
    "read-only": Trap("torch", lambda convert: written(locked(np.ones(3)), convert)),
    "reversed": Trap("torch", lambda convert: convert(np.arange(3.0)[::-1]).tolist()),
    "big-endian": Trap("torch", lambda convert: convert(np.arange(3).astype(">f8")).tolist()),
    "masked": Trap("torch", lambda convert: convert(MASKED).tolist()),
    "typed-buffer": Trap("torch", lambda convert: (str((y := convert(DOUBLES)).dtype), bytes(y.numpy()))),
    "rounded": Trap("torch", lambda convert: convert(DOUBLES).tolist() == DOUBLES.tolist()),
    "overflow": Trap("torch", lambda convert: convert(np.array([1e300])).tolist()),
    "huge-integers": Trap("numpy", lambda convert: convert([-1, 2**63 + 1]).tolist()),
    "default-device": Trap("torch", on_another_device),
    "bfloat16": Trap("numpy", lambda convert: convert(BRAIN).tobytes()),
    "negative-bit": Trap("numpy", lambda convert: convert(torch.tensor([1 + 2j]).conj().imag).tolist()),
    "expanded": Trap("numpy", lambda convert: written(torch.zeros(1).expand(3), convert)),
    "no-grad": Trap("numpy", without_gradients),
    "wrong-gradient": Trap("numpy", gradient),
    "snapshot": Trap("numpy", snapshot),
    "cut-in-list": Trap("torch", is_tracked_in_list),
    "unfinished": Trap("torch", unfinished),
    "jax-alias": Trap("jax", aligned_alias),
    "jax-wraps": Trap("jax", wrapped),
    "jax-changed": Trap("torch", lambda convert: written(jnp().zeros(3), convert)),
    "jax-shape": Trap("torch", lambda convert: convert(jnp().ones((2, 3))).shape),
    "jax-bfloat16": Trap("jax", lambda convert: np.asarray(convert(BRAIN)).tobytes()),
    "dask-twice": Trap("numpy", dask_runs),
}
"""The traps of the page, in its order."""
