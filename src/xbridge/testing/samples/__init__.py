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

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from xbridge.extend import CPU, DTYPES, HOST, get_backend, is_inexact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xbridge import Device
    from xbridge.protocol import Array, Backend, HostArray


class Make(Protocol):
    """A maker of arrays from values, on the host or on a device."""

    def __call__(self, values: HostArray, device: Device = ..., /) -> Array:
        """Make an array of these bits."""


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


# -- look-ups --------------------------------------------------------------------------------------


class State(NamedTuple):
    """The flags of an array, and the step that gives them to a new array."""

    tracked: bool
    writable: bool
    make: Callable[[Array], Array] | None = None


def states_of(cases: Mapping[str, LayoutCase], layout: str, dtype: str, device: Device) -> list[State]:
    """Return the states that arrays of a layout can have on a device: plain, read-only, tracked."""
    case = cases[layout]
    if not case.is_on(device):  # an array that is moved gets new memory, and stays in its graph
        states = [State(case.tracked, any(other.writable for other in cases.values()))]
    else:
        states = [State(case.tracked, case.writable)]
        if case.as_readonly and case.writable:
            states.append(State(case.tracked, writable=False, make=case.as_readonly))
    if case.require_grad and not case.tracked and is_inexact(dtype):
        states.append(State(tracked=True, writable=False, make=case.require_grad))
    return states


def dtypes_of(backend: Backend, device: Device = CPU) -> list[str]:
    """Return the dtypes of whole bytes that both the backend has on a device and NumPy has."""
    places = ((backend, device), (get_backend(HOST), CPU))
    whole = (name for name, facts in DTYPES.items() if not facts.is_packed)
    return [name for name in whole if not any(one.unsupported_dtype(name, there) for one, there in places)]


def samples_of(name: str) -> Samples:
    """Return the samples of a backend."""
    return _samples_of(get_backend(name))  # type: ignore[arg-type] # a module is hashable


def make_sample(
    name: str, layout: str, values: HostArray, device: Device = CPU, state: State | None = None
) -> Sample:
    """Make a sample of these values in that layout, in the plain state if none is given.

    An array with a layout that a device lacks is made on the host and moved.
    """
    cases = samples_of(name).cases
    case = cases[layout]
    values = case.fold(values) if case.fold else values
    state = state or states_of(cases, layout, values.dtype.name, device)[0]
    if device != CPU and case.make_on_device:
        array = case.make_on_device(values, device)
    else:
        made = case.make(values)
        array = made if device == CPU else get_backend(name).to_device(made, device)
    array = state.make(array) if state.make else array
    return Sample(array, values, layout, state.tracked, state.writable)


@cache
def _samples_of(backend: Backend) -> Samples:
    if backend.samples:
        return cast("Samples", import_module(backend.samples))
    from xbridge.testing.samples.derived import DerivedSamples  # noqa: PLC0415 -- only for backends without

    return DerivedSamples(backend)
