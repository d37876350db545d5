"""Memory of the device: unmapped addresses, and bytes that only the device's streams touch.

A tensor of the device is a plain `torch.Tensor` with real sizes, strides, offset and storage, at an unmapped
address. A read on the host crashes, as with a real device: the bytes are in a table. So views cost nothing
and alias correctly, and the host cannot read the memory by accident.

New memory, of the device and pinned, has all bits set: NaN, -1, the largest unsigned integer, a negative
number in the float8 kinds without such a NaN, and an invalid byte for bool (it reads as True: compare bytes).
Freed memory is filled again, in the order of its stream, and given to the next tensor of that size on that
stream, as by torch's caching allocators. If another stream still uses it without `record_stream`, it is soon
overwritten.
"""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from xbridge.testing.emulated._streams import current_stream

if TYPE_CHECKING:
    from xbridge.testing.emulated._streams import Stream

POISON = 0xFF
CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""The dispatch keys with which an operator runs on the host for any tensor."""

_set = torch.ops.aten.set_.source_Storage_storage_offset
_addresses = itertools.count(1 << 60, 1 << 36)
_blocks: dict[int, _Block] = {}
_freed: defaultdict[tuple[Stream, int], list[_Block]] = defaultdict(list)
_pinned: dict[int, int] = {}


@dataclass(eq=False, slots=True)
class _Block:
    """A piece of memory that is allocated and freed as a whole."""

    address: int
    data: torch.Tensor
    home: Stream
    shared: bool = False
    """True if another stream may still use the memory after it is freed."""

    def free(self) -> None:
        """Free the memory. A finalizer calls this at any time, when the last tensor is deleted."""
        del _blocks[self.address]
        if not self.shared:
            self.home.do(lambda: self.data.fill_(POISON))
            _freed[self.home, len(self.data)].append(self)


@dataclass(eq=False, slots=True)
class DeviceMemory:
    """The memory and layout of a device tensor, for queued work. It does not keep the tensor alive."""

    data: torch.Tensor
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]
    conj: bool
    neg: bool

    def open(self) -> torch.Tensor:
        """View the same elements as a host tensor. Only work in a stream may call this."""
        bare = torch.tensor([], dtype=self.dtype, device="cpu")
        view = _set.redispatch(CPU, bare, self.data.untyped_storage(), self.offset, self.size, self.stride)
        view = view.conj() if self.conj else view
        return view._neg_view() if self.neg else view  # type: ignore[no-any-return]


def memory_of(x: torch.Tensor) -> DeviceMemory:
    """Return the memory of a device tensor."""
    block = _blocks[x.untyped_storage().data_ptr()]
    offset = int(x.storage_offset())
    return DeviceMemory(block.data, x.dtype, offset, x.shape, x.stride(), x.is_conj(), x.is_neg())


def make(outline: torch.Tensor) -> torch.Tensor:
    """Make a new device tensor with the layout of another tensor, which may be a meta tensor."""
    return allocate_like(torch._C._acc.create_empty_tensor((0,), outline.dtype), outline)


def allocate_like(x: torch.Tensor, outline: torch.Tensor) -> torch.Tensor:
    """Give a device tensor new memory with the layout of another tensor."""
    storage = _allocate(outline.untyped_storage().nbytes())
    shape = (outline.storage_offset(), outline.shape, outline.stride())
    return _set.redispatch(CPU, x, storage, *shape)  # type: ignore[no-any-return]


def share(x: torch.Tensor) -> None:
    """Let another stream use the memory after it is freed: it is not allocated again."""
    _blocks[x.untyped_storage().data_ptr()].shared = True


def pin(x: torch.Tensor) -> torch.Tensor:
    """Make the new memory of a host tensor pinned memory."""
    storage = x.untyped_storage()
    storage.fill_(POISON)  # type: ignore[attr-defined] # unknown to its stubs
    _pinned[storage.data_ptr()] = storage.nbytes()
    weakref.finalize(storage, _pinned.pop, storage.data_ptr()).atexit = False
    return x


def is_pinned(x: torch.Tensor) -> bool:
    """Return True if the memory of a host tensor is pinned, also if the tensor is a view."""
    address = x.untyped_storage().data_ptr()
    now = _pinned.copy()  # a garbage collection may change it at any moment
    return any(start <= address < start + max(size, 1) for start, size in now.items())


def _allocate(size: int) -> torch.UntypedStorage:
    """Allocate bytes: the block that was freed last on this stream, or a new one."""
    home = current_stream()
    try:
        block = _freed[home, size].pop()
    except IndexError:
        with torch.inference_mode(mode=False):  # it is written outside of inference mode too
            data = torch.full((size,), POISON, dtype=torch.uint8)
        block = _Block(next(_addresses), data, home)
    device = torch.device("privateuseone", 0)
    storage = torch._C._construct_storage_from_data_pointer(block.address, device, size)
    _blocks[block.address] = block
    weakref.finalize(storage, block.free).atexit = False
    return storage  # type: ignore[return-value] # a device tensor
