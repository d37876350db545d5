"""Pinned host memory, the setting for it, and the tensors that can be moved through it as plain bytes.

A device reads and writes pinned memory at line rate, and other host memory several times slower. But pinning
memory takes longer than a copy. So the caller's memory is never pinned: arrays move through buffers.

Buffers come from torch's allocator of pinned memory. It keeps what is freed for the next call, and hands it
out only when all copies that were queued on it are done. So a buffer may be dropped at any time, also by
Ctrl-C, and nobody waits for it or counts it.

Torch's dispatch keys of a tensor show in one integer all that its dispatcher would do for it: autograd,
transforms, a conjugate bit. A tensor whose keys are those of a new empty tensor has nothing of this.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import NamedTuple

import torch

from xbridge._core.dtypes import DTYPES
from xbridge.backends.torch import _private
from xbridge.backends.torch._private import dispatch_modes, dual_levels
from xbridge.backends.torch._transfer.streams import is_captured, streams_of
from xbridge.errors import DeviceError, OptionError

SETTING = "XBRIDGE_PINNED_MIB"
"""The environment variable for the memory to pin for a large array, in MiB; 0 turns buffers off."""

LEAST = 1 << 25
"""The least bytes of an array that moves through buffers. For less, `Tensor.to` is as fast.

On an H100, 32 MiB took 5.2 ms to the device through buffers and 2.9 ms without, and 64 MiB 5.6 and 8.6 ms;
back, 16 MiB took 4.5 and 1.4 ms, and 32 MiB 5.8 and 19.8 ms. About 4 ms of each time through buffers was the
start of the threads, which stay for the next array (`benchmarks/gpu.md`).
"""

_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
ITEMS = {
    dtype: _BYTES[dtype.itemsize]
    for word, facts in DTYPES.items()
    if not facts.is_packed and (dtype := getattr(torch, word, None))
}
"""For each dtype, one of the same size that NumPy has too, under which the bytes are copied."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Sizes(NamedTuple):
    """Sizes of the pinned buffers, and of the arrays that use them."""

    chunk: int
    """Bytes of a buffer. Two halves of it take turns for a large array, and a pack fills all of it."""
    buffers: int
    """The number of buffers, and of threads, for a large array."""
    least: int
    """The least bytes of an array that moves through the buffers."""


_sizes: Sizes | None = None
"""The result of `sizes`, after the setting was read."""


def sizes() -> Sizes:
    """Return the sizes. The environment variable is read on first use; with 0, no array uses buffers."""
    global _sizes  # noqa: PLW0603 -- one for the process
    if _sizes is None:
        _sizes = _read_setting()
    return _sizes


def _read_setting() -> Sizes:
    setting = os.environ.get(SETTING, "").strip() or "64"
    if not setting.isdecimal():
        reason = "it is a whole number of MiB for each device"
        raise OptionError.build(f"read {SETTING}={setting!r}", reason, f"{SETTING}=64")
    buffers = min(8, os.cpu_count() or 1)
    share = (int(setting) << 20) // buffers
    if not share:
        return Sizes(0, 0, sys.maxsize)
    # torch rounds the size of pinned memory up to a power of two
    return Sizes(1 << share.bit_length() - 1, buffers, LEAST)


def pin_buffer() -> torch.Tensor:
    """Return a pinned buffer of bytes, which is the caller's until nothing refers to it."""
    chunk = sizes().chunk
    try:
        return torch.empty(chunk, dtype=torch.uint8, device="cpu", pin_memory=True)
    except (RuntimeError, TypeError, ValueError) as error:
        hint = f"a smaller {SETTING}, or {SETTING}=0"
        raise DeviceError.build(f"pin {chunk >> 20} MiB", str(error).partition("\n")[0], hint) from error


def release_buffers() -> None:
    """Return the pinned memory that nobody uses to the system."""
    try:
        _private.empty_host_cache()
    except RuntimeError as error:
        reason = f"the device failed with {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise DeviceError.build("free all buffers", reason) from error


def may_use_buffers(place: torch.device) -> bool:
    """Return True if the device is one with pinned buffers, and no mode, transform or capture is active."""
    if place.type not in ("cuda", _private.get_plugin_device()):
        return False
    if dual_levels._current_level >= 0 or dispatch_modes._is_in_torch_dispatch_mode:
        return False
    if _private.current_transform() is not None or torch.compiler.is_dynamo_compiling():
        return False
    api = streams_of(place)
    return api is not None and not is_captured(api)


def is_bare(x: torch.Tensor) -> bool:
    """Return True if a tensor can be moved as plain bytes: nothing is pending on it and nothing tracks it."""
    if type(x) not in _PLAIN or x.dtype not in ITEMS or x.requires_grad or not x.numel():
        return False
    return _private.raw_keys(_private.dispatch_keys(x)) in bare_keys(x.device.type)


@cache
def bare_keys(kind: str) -> frozenset[int]:
    """Return the dispatch keys of plain tensors on a kind of device, in and out of inference mode."""
    found = []
    for mode in (False, True):
        with torch.inference_mode(mode):
            found.append(_private.raw_keys(_private.dispatch_keys(torch.empty(0, device=kind))))
    return frozenset(found)
