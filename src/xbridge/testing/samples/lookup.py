"""Look up the samples of a backend, and make arrays of them on a device."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from xbridge.extend import CPU, DTYPES, HOST, get_backend, is_inexact
from xbridge.testing.samples import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xbridge import Device
    from xbridge.protocol import Array, Backend, HostArray
    from xbridge.testing.samples import LayoutCase, Samples


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
    return _samples_of(get_backend(name))


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
