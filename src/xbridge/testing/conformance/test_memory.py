"""Memory: it is shared only if that is safe, and new memory is exact, writable and has no other owner.

The layout of the array and the flags of the backend decide if memory must be shared. The tests
compare addresses, and write on one side and read on the other.
"""

from __future__ import annotations

import gc
from itertools import product
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

import numpy as np
import pytest

from xbridge import asarray, device_of, to_backend, to_numpy
from xbridge.errors import type_of
from xbridge.extend import CPU, DTYPES, HOST, category, get_backend, native_dtype
from xbridge.testing._parametrize import promise
from xbridge.testing.conformance._cases import (
    FULL_SHAPE,
    common_dtypes,
    default_device,
    disjoint,
    edge_values,
    for_all_arrays,
    for_host_arrays,
    for_own_arrays,
    is_aligned,
    memory_of,
    plain_array,
    read,
    refused_write,
    same_bits,
    same_memory,
    same_values,
    sweep,
    swept_dtypes,
)
from xbridge.testing.samples.lookup import dtypes_of, samples_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge import Device
    from xbridge.protocol import Array, HostArray
    from xbridge.testing.samples import Sample


# -- sharing -------------------------------------------------------------------------------------


def _accepts(backend: str, host: HostArray) -> bool:
    """Return True if the backend shares host memory of this layout."""
    module = get_backend(HOST)
    return get_backend(backend).accepts_layout(module.array_info(host), module.memory_layout(host))


@promise("sharing")
def test_dense_host_memory_is_shared(backend: str) -> None:
    module = get_backend(backend)
    for dtype in swept_dtypes(backend):
        for shape in (FULL_SHAPE, (), (5,)):
            host = edge_values(dtype, shape)
            assert _accepts(backend, host)
            assert same_memory(memory_of(backend, module.from_numpy(host)), memory_of(HOST, host))


@promise("host")
@for_host_arrays
def test_accepted_layouts_keep_every_bit(backend: str, sample: Sample) -> None:
    module, host = get_backend(backend), sample.array
    assert "host" not in module.gaps, "its arrays are never in host memory"
    if _accepts(backend, host):
        x = module.from_numpy(host.view(np.ndarray))
        assert same_bits(read(backend, x), sample.values)
        layout = module.memory_layout(x)
        always_copies = "sharing" in module.gaps and not module.assumes_immutable
        assert same_memory(layout, memory_of(HOST, host)) or layout.is_unallocated() or always_copies
        assert module.array_info(x).dtype == sample.values.dtype.name
        assert layout.aligned is is_aligned(layout, host.dtype.alignment) or not host.size


@promise("host")
@for_own_arrays
def test_to_numpy_of_the_backend_returns_a_view(backend: str, sample: Sample) -> None:
    module = get_backend(backend)
    x = module.detach(sample.array) if sample.tracked else sample.array
    if module.memory_layout(x).materialized:
        host = module.to_numpy(x)
        assert type(host) is np.ndarray
        assert same_memory(memory_of(HOST, host), memory_of(backend, sample.array))
        assert same_bits(read(HOST, host), sample.values)


# -- new memory ----------------------------------------------------------------------------------


class Step(NamedTuple):
    """A call that makes new memory: the backend of its result, and what it makes of values."""

    target: str
    label: str
    make: Callable[[Array], Array]
    expect: Callable[[HostArray], HostArray] = lambda values: values


def _steps(backend: str, dtype: str, device: Device) -> Iterator[Step]:
    """Yield each step that makes new memory of an array on a device."""
    module = get_backend(backend)
    yield Step(backend, "copy", module.copy)
    yield Step(backend, "copy=True", lambda x: to_backend(x, backend, copy=True))
    yield Step(backend, "stack", lambda x: module.stack([x], (1,)), lambda values: values[None])
    yield Step(backend, "asarray of two", lambda x: asarray([x, x]), lambda v: np.stack([v, v]))
    yield Step(HOST, "copy=True on the host", lambda x: to_numpy(x, copy=True))
    yield Step(HOST, "copy=True and dtype= on the host", lambda x: to_numpy(x, copy=True, dtype=dtype))
    wider = _wider_dtype(backend, dtype, device)
    if wider is not None:

        def cast(values: HostArray) -> HostArray:
            with np.errstate(all="ignore"):
                return values.astype(native_dtype(wider))

        yield Step(backend, "astype", lambda x: module.astype(x, wider), cast)
        yield Step(backend, "dtype=", lambda x: to_backend(x, backend, dtype=wider), cast)
        yield Step(HOST, "dtype= on the host", lambda x: to_numpy(x, dtype=wider), cast)
    for other in module.devices():
        if other != device and not module.unsupported_dtype(dtype, other):
            yield from _moves(backend, other)


def _moves(backend: str, device: Device) -> Iterator[Step]:
    """Yield the move to another device, and one by it to the host."""
    module = get_backend(backend)
    yield Step(backend, f"move to {device}", lambda x: to_backend(x, backend, device=device))
    if device != CPU:
        yield Step(HOST, f"move from {device}", lambda x: to_numpy(module.to_device(x, device)))


def _wider_dtype(backend: str, dtype: str, device: Device) -> str | None:
    """Return a dtype that holds nearly all numbers of another one, and that the library has on a device."""
    inexact = ("complex128", "complex64") if category(dtype) == "complex" else ("float64", "float32")
    here = dtypes_of(get_backend(backend), device)
    wider = [word for word in inexact if word in here and DTYPES[word].bits >= DTYPES[dtype].bits]
    return next((word for word in wider if word != dtype), None)


@for_all_arrays
def test_new_memory_is_exact_and_writable(backend: str, sample: Sample) -> None:
    """No step changes a value or the device, and a write to its result does not reach the source."""
    x, module, dtype = sample.array, get_backend(backend), sample.values.dtype.name
    here = device_of(x)
    steps = [*_steps(backend, dtype, here)]
    if here == default_device(backend) and not module.memory_layout(x).materialized:
        steps += [Step(backend, "materialize", module.materialize), Step(HOST, "to_numpy", to_numpy)]
    for target, step, make, expect in steps:
        made, wanted = make(x), expect(sample.values)
        found, info = read(target, made), get_backend(target).array_info(made)
        same = same_bits if wanted.dtype == sample.values.dtype else same_values
        assert same(found, wanted), f"{step}: other values"
        if target == backend and not step.startswith("move"):
            assert info.device == here, f"{step}: on another device"
        assert disjoint(memory_of(target, made), memory_of(backend, x)), f"{step}: the memory is shared"
        can_write = any(case.writable for case in samples_of(target).cases.values())
        if can_write and not info.requires_grad:
            assert not refused_write(target, made), f"{step}: new memory is writable"
    assert same_bits(read(backend, x), sample.values), "the source follows a write to the result"


def _order(strides: tuple[int, ...], shape: tuple[int, ...]) -> list[int]:
    """Return the axes with more than one element, the longest stride first."""
    axes = [axis for axis, n in enumerate(shape) if n > 1]
    return sorted(axes, key=lambda axis: -abs(strides[axis]))


@promise("axis_order")
def test_a_copy_is_dense_and_keeps_the_order_of_the_axes(backend: str) -> None:
    for name in dict.fromkeys((backend, HOST)):
        for sample in sweep(name, swept_dtypes(backend)):
            source = get_backend(name).memory_layout(sample.array)
            if source.may_overlap_itself() or not sample.values.size:
                continue
            copies = [(target, to_backend(sample.array, target, copy=True)) for target in (backend, HOST)]
            for target, copied in [*copies, (name, get_backend(name).copy(sample.array))]:
                layout = memory_of(target, copied)
                if layout.is_unallocated():
                    continue
                low, high = layout.span()
                assert high - low == sample.values.nbytes, "the copy has holes"
                order = _order(source.strides, source.shape)
                assert _order(layout.strides, layout.shape) == order, sample.layout


# -- permission to write -------------------------------------------------------------------------


@for_host_arrays
def test_read_only_memory_is_never_written_through_the_library(backend: str, sample: Sample) -> None:
    if backend == HOST:
        return
    x, layout = to_backend(sample.array, backend), get_backend(HOST).memory_layout(sample.array)
    if layout.may_overlap_itself() or not layout.writable:
        assert (
            disjoint(memory_of(backend, x), memory_of(HOST, sample.array))
            or not memory_of(backend, x).writable
        )
        refused_write(backend, x)
        assert same_bits(read(HOST, sample.array), sample.values)


def _aligned(values: HostArray) -> HostArray:
    """Copy values to an address at which every library shares them."""
    raw = np.empty(values.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    aligned: HostArray = raw[start : start + values.nbytes].view(values.dtype)
    aligned[...] = values
    return aligned


@promise("readonly")
def test_read_only_host_memory_gives_a_read_only_array(backend: str) -> None:
    module, host = get_backend(backend), _aligned(_values(backend, 1 << 16))
    values = host.copy()
    host.flags.writeable = False
    x = module.from_numpy(host)
    assert module.owns(type(x)), "from_numpy returned an array of another library"
    layout = module.memory_layout(x)
    assert layout.is_unallocated() or same_memory(layout, memory_of(HOST, host))
    assert not layout.writable
    assert refused_write(backend, x)
    assert same_bits(read(HOST, host), values)


# -- lifetime ------------------------------------------------------------------------------------


def _values(backend: str, size: int) -> HostArray:
    """Return values of a usual dtype that the library has."""
    return edge_values(min(common_dtypes(backend), key=lambda word: word != "float32"), (size,))


def _still_alive(sources: dict[str, ref[Array]]) -> list[str]:
    gc.collect()
    return [step for step, source in sources.items() if source() is not None]


def test_new_memory_does_not_keep_its_source_alive(backend: str) -> None:
    values, device = _values(backend, 64), default_device(backend)
    sources, made = {}, []
    for step in _steps(backend, values.dtype.name, device):
        x = plain_array(backend, values)
        if not type(x).__weakrefoffset__:
            pytest.skip(f"{type_of(x)} has no weak references")
        sources[step.label] = ref(x)
        made.append(step.make(x))
        del x
    assert _still_alive(sources) == []


def test_a_deleted_view_releases_its_source(backend: str) -> None:
    module, values = get_backend(backend), _values(backend, 64)
    sources: dict[str, ref[Array]] = {}
    out: list[Callable[[Array], Array]] = [module.to_numpy, to_numpy, module.detach]
    into: list[Callable[[Array], Array]] = [lambda host: to_backend(host, backend), module.from_numpy]
    if backend != HOST:
        out, into = [*out, module.fast.to_numpy], [*into, module.fast.from_numpy]
    for name, look in [*product([backend], out), *product([HOST], into)]:
        x = plain_array(name, values)
        if type(x).__weakrefoffset__:
            sources[f"{len(sources)}: {look}"] = ref(x)
        look(x)
        del x
    assert _still_alive(sources) == []


def test_an_array_keeps_shared_host_memory_alive(backend: str) -> None:
    values = _values(backend, 64)
    owner = bytearray(values.tobytes())
    host = np.frombuffer(owner, values.dtype)
    x = to_backend(host, backend)
    shares = same_memory(memory_of(backend, x), memory_of(HOST, host))
    del host
    gc.collect()
    if shares:
        with pytest.raises(BufferError):
            owner.append(0)
    assert same_bits(read(backend, x), values)
    del x
    gc.collect()
    owner.append(0)
