"""Samples: arrays of a library, each together with the values that it holds, and one module per backend.

A `LayoutCase` takes values, a dense host array in native byte order. It makes an array of exactly these bits
that is stored in one way: transposed, read-only, conjugated later, tracked by autograd. A library may have
layouts of its own. Its backend's `samples` then names the module that makes them. Without such a module, the
kit tries every layout of host memory that the backend accepts. A case may exist on other devices too. If it
does not, its array is made on the host and moved by the library.
"""

# pyright: reportReturnType=false
# The methods of a protocol consist of their docstrings.

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from xbridge.extend import CPU

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xbridge import Device
    from xbridge.protocol import Array, HostArray


class LayoutCase(NamedTuple):
    """One way to store values: a memory layout, a flag, a pending operation, a position in a graph."""

    make: Callable[[HostArray], Array]
    """Make a new array that holds the values, bit for bit. The array keeps no reference to the values."""
    fold: Callable[[HostArray], HostArray] | None = None
    """Return values of the same shape that the layout can hold, if its elements share memory."""
    takes: Callable[[str, tuple[int, ...]], bool] = lambda _dtype, _shape: True
    """Return True if the case exists for a dtype and a shape."""
    tracked: bool = False
    """True if the arrays require grad."""
    writable: bool = True
    """True if the arrays can be written, and a write changes no other array."""
    as_readonly: Callable[[Array], Array] | None = None
    """Make such an array read-only, by the library's own means; None if it cannot be, or already is."""
    require_grad: Callable[[Array], Array] | None = None
    """Return a new leaf that requires grad over the memory of such an array; None if there is none."""
    make_on_device: Callable[[HostArray, Device], Array] | None = None
    """Make a new array with this layout on a device; None if the layout exists on the host only."""

    def is_on(self, device: Device) -> bool:
        """Return True if arrays with this layout exist on the device."""
        return device == CPU or self.make_on_device is not None


class Sample(NamedTuple):
    """An array, and the facts that are known without asking its backend."""

    array: Array
    values: HostArray
    """Its values: dense, in native byte order, in other memory than the array's."""
    layout: str
    """The name of its `LayoutCase`."""
    tracked: bool
    writable: bool


class Samples(Protocol):
    """The samples of one library."""

    @property
    def cases(self) -> Mapping[str, LayoutCase]:
        """Every layout that its arrays on the host can have, by name."""

    @property
    def refused(self) -> Mapping[str, Callable[[], Array]]:
        """Makers of unsupported arrays, by a description. Each must raise when it is converted."""

    def read(self, x: Array, /) -> HostArray:
        """Return a new dense host array of the same bits in native order, by the library's own means."""

    def write(self, x: Array, /) -> None:
        """Change every element in place, by the library's own means. Raises if the array is read-only."""
