"""Memory of the device: addresses that lead nowhere, and bytes that only the device's streams touch.

A tensor of the device is a plain `torch.Tensor`: real sizes, strides, offset and storage, at an address that
nothing is mapped to. Whoever follows it on the host crashes, as with a real device; the bytes lie elsewhere,
in a table. So views cost nothing and alias as they should, and the host cannot see the memory by accident.

Fresh memory, of the device and pinned, has all bits set: NaN, -1, the largest unsigned, a negative number in
the float8 kinds that have no such NaN, and for bool a byte that is none (it reads as True: compare bytes).
What is freed is filled again, in the order of its stream, and given to the next tensor of that size on that
stream, as torch's caching allocators do: what another stream still uses, unless it was told so by
`record_stream`, is soon overwritten.
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
"""The dispatch keys with which an operator does on the host whatever it is given."""

_set = torch.ops.aten.set_.source_Storage_storage_offset
_addresses = itertools.count(1 << 60, 1 << 36)
_blocks: dict[int, _Block] = {}
_freed: defaultdict[tuple[Stream, int], list[_Block]] = defaultdict(list)
_pinned: dict[int, int] = {}


@dataclass(eq=False, slots=True)
class _Block:
    """Memory that is handed out as a whole, and comes back as a whole."""

    address: int
    data: torch.Tensor
    home: Stream
    shared: bool = False
    """Whether another stream may still use it when it is freed."""

    def free(self) -> None:
        """Take it back: in the middle of anything, when its last tensor happens to die."""
        del _blocks[self.address]
        if not self.shared:
            self.home.do(lambda: self.data.fill_(POISON))
            _freed[self.home, len(self.data)].append(self)


@dataclass(eq=False, slots=True)
class BackendDevice:
    """Where a tensor of the device lies: what work has to know of it, without keeping it alive."""

    data: torch.Tensor
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]
    conj: bool
    neg: bool

    def open(self) -> torch.Tensor:
        """The same elements as a host tensor: for work in a stream, and nobody else."""
        bare = torch.tensor([], dtype=self.dtype, device="cpu")
        view = _set.redispatch(CPU, bare, self.data.untyped_storage(), self.offset, self.size, self.stride)
        view = view.conj() if self.conj else view
        return view._neg_view() if self.neg else view  # type: ignore[no-any-return]


def place_of(x: torch.Tensor) -> BackendDevice:
    """Where a tensor of the device lies now."""
    block = _blocks[x.untyped_storage().data_ptr()]
    offset = int(x.storage_offset())
    return BackendDevice(block.data, x.dtype, offset, x.shape, x.stride(), x.is_conj(), x.is_neg())


def make(outline: torch.Tensor) -> torch.Tensor:
    """A new tensor of the device, laid out like another, which may be a meta tensor."""
    return lay(torch._C._acc.create_empty_tensor((0,), outline.dtype), outline)


def lay(x: torch.Tensor, outline: torch.Tensor) -> torch.Tensor:
    """Give a tensor of the device new memory, laid out like another."""
    storage = _allocate(outline.untyped_storage().nbytes())
    shape = (outline.storage_offset(), outline.shape, outline.stride())
    return _set.redispatch(CPU, x, storage, *shape)  # type: ignore[no-any-return]


def share(x: torch.Tensor) -> None:
    """Let another stream use the memory even when it is freed: then nobody gets it."""
    _blocks[x.untyped_storage().data_ptr()].shared = True


def pin(x: torch.Tensor) -> torch.Tensor:
    """Make a host tensor's fresh memory pinned memory."""
    storage = x.untyped_storage()
    storage.fill_(POISON)  # type: ignore[attr-defined] # unknown to its stubs
    _pinned[storage.data_ptr()] = storage.nbytes()
    weakref.finalize(storage, _pinned.pop, storage.data_ptr()).atexit = False
    return x


def is_pinned(x: torch.Tensor) -> bool:
    """Whether the memory of a host tensor is pinned, whoever made the tensor of it."""
    address = x.untyped_storage().data_ptr()
    now = _pinned.copy()  # a garbage collection may change it at any moment
    return any(start <= address < start + max(size, 1) for start, size in now.items())


def _allocate(size: int) -> torch.UntypedStorage:
    """So many bytes: what was freed last on this stream, or else new ones."""
    home = current_stream()
    try:
        block = _freed[home, size].pop()
    except IndexError:
        with torch.inference_mode(mode=False):  # others will write it too
            data = torch.full((size,), POISON, dtype=torch.uint8)
        block = _Block(next(_addresses), data, home)
    device = torch.device("privateuseone", 0)
    storage = torch._C._construct_storage_from_data_pointer(block.address, device, size)
    _blocks[block.address] = block
    weakref.finalize(storage, block.free).atexit = False
    return storage  # type: ignore[return-value] # that is what it makes
