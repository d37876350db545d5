"""Samples: arrays of a library together with the values that they hold, which nobody has to read back.

A *way* takes values, a dense host array in native byte order, and makes an array of exactly these bits that
lies in memory another way: transposed, read-only, conjugated later, tracked by autograd. What only one
library can have is said in a module of its own, whose import path is the backend's fact `samples`. Without
one, whatever host memory the library can express is tried. A way may be there on other devices too; an array
of one that is not lies there as the library lays what it moves.
"""

# pyright: reportReturnType=false
# The methods of a protocol are their docstrings.

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from xbridge._core.devices import CPU

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, HostArray


class LayoutCase(NamedTuple):
    """One way in which values can lie: a memory layout, a flag, a pending operation, a place in a graph."""

    lay: Callable[[HostArray], Array]
    """Values -> a new array that holds them, bit for bit. The array keeps no hold of the values."""
    fold: Callable[[HostArray], HostArray] | None = None
    """Values -> values of the same shape that it can hold, where elements share memory."""
    takes: Callable[[str, tuple[int, ...]], bool] = lambda _dtype, _shape: True
    """Whether it is there for a dtype and a shape."""
    tracked: bool = False
    """Whether the arrays require grad."""
    writable: bool = True
    """Whether the arrays can be written, and are the only thing that changes when they are."""
    as_readonly: Callable[[Array], Array] | None = None
    """Makes such an array read-only, by the library's own means; None where it cannot, or need not, be."""
    require_grad: Callable[[Array], Array] | None = None
    """A new leaf that requires grad over the memory of such an array; None where there is none."""
    on: Callable[[HostArray, Device], Array] | None = None
    """Values -> a new array on a device that lies this way there; None where this way is the host's alone."""

    def is_on(self, device: Device) -> bool:
        """Whether arrays lie this way there."""
        return device == CPU or self.on is not None


class Sample(NamedTuple):
    """An array, and what is known of it without asking."""

    array: Array
    values: HostArray
    """What it holds: dense, in native byte order, never the array's own memory."""
    way: str
    tracked: bool
    writable: bool


class Samples(Protocol):
    """What the test kit knows of one library."""

    @property
    def ways(self) -> Mapping[str, LayoutCase]:
        """Every way in which its arrays on the host can lie, by name."""

    @property
    def refused(self) -> Mapping[str, Callable[[], Array]]:
        """Arrays that must be refused on the way out, by what they are."""

    def read(self, x: Array, /) -> HostArray:
        """A new dense host array of the same bits in native order, by the library's own means."""

    def write(self, x: Array, /) -> None:
        """Change every element where it lies, by the library's own means; raises where that is forbidden."""
