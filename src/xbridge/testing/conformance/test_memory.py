"""Memory: it is shared only if that is safe, and `copy` is followed.

The layout of the array and the flags of the backend decide if memory must be shared. The tests
compare addresses, and write on one side and read on the other.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from xbridge import to_backend, to_numpy
from xbridge.extend import CPU, HOST, get_backend
from xbridge.protocol import ArrayInfo
from xbridge.testing._gaps import promise
from xbridge.testing.conformance._cases import (
    FULL_SHAPE,
    common_dtypes,
    edge_values,
    for_host_arrays,
    for_own_arrays,
    sweep,
    swept_dtypes,
)
from xbridge.testing.conformance._probes import (
    always_copies,
    disjoint,
    flip_bits,
    host_memory_of,
    is_aligned,
    memory_of,
    read,
    refused_write,
    same_bits,
    same_memory,
)

if TYPE_CHECKING:
    from xbridge.protocol import Array, HostArray
    from xbridge.testing.samples.model import Sample


def _host_info(host: HostArray) -> ArrayInfo:
    return ArrayInfo(host.dtype.newbyteorder("=").name, CPU, host.shape, native_byteorder=host.dtype.isnative)


# -- sharing -------------------------------------------------------------------------------------


@promise("sharing")
def test_dense_host_memory_is_shared(backend: str) -> None:
    module = get_backend(backend)
    for dtype in swept_dtypes(backend):
        for shape in (FULL_SHAPE, (), (5,)):
            host = edge_values(dtype, shape)
            assert module.accepts_layout(_host_info(host), get_backend(HOST).memory_layout(host))
            assert same_memory(memory_of(backend, module.from_numpy(host)), memory_of(HOST, host))


@promise("host")
@for_host_arrays
def test_accepted_layouts_keep_every_bit(backend: str, sample: Sample) -> None:
    module, host = get_backend(backend), sample.array
    assert "host" not in module.gaps, "its arrays are never in host memory"
    if module.accepts_layout(_host_info(host), get_backend(HOST).memory_layout(host)):
        x = module.from_numpy(host.view(np.ndarray))
        assert same_bits(read(backend, x), sample.values)
        layout = module.memory_layout(x)
        assert same_memory(layout, memory_of(HOST, host)) or layout.is_unallocated() or always_copies(module)
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


# -- copies --------------------------------------------------------------------------------------


def _copies(backend: str, x: Array) -> list[tuple[str, Array]]:
    """Return every result that must be new memory."""
    module, name = get_backend(backend), get_backend(backend).array_info(x).dtype
    made = [(backend, to_backend(x, backend, copy=True)), (HOST, to_numpy(x, copy=True))]
    made += [(backend, module.copy(x)), (HOST, to_numpy(x, copy=True, dtype=name))]
    wider = "complex128" if name.startswith("complex") else "float64"
    if wider in common_dtypes(backend) and wider != name:
        made += [(backend, module.astype(x, wider)), (HOST, to_numpy(x, dtype=wider))]
    return made


@for_own_arrays
def test_a_copy_shares_no_memory(backend: str, sample: Sample) -> None:
    for name, copied in _copies(backend, sample.array):
        assert disjoint(memory_of(name, copied), memory_of(backend, sample.array))
        before = read(name, copied)
        flip_bits(host_memory_of(backend, sample.array), sample.values.dtype.name)
        assert same_bits(read(name, copied), before)
        flip_bits(host_memory_of(backend, sample.array), sample.values.dtype.name)
        flip_bits(host_memory_of(name, copied), get_backend(name).array_info(copied).dtype)
        assert same_bits(read(backend, sample.array), sample.values)


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
    dtype = "float32" if "float32" in common_dtypes(backend) else common_dtypes(backend)[0]
    module, host = (
        get_backend(backend),
        _aligned(edge_values(dtype, (1 << 16,))),
    )
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


def test_an_array_keeps_shared_host_memory_alive(backend: str) -> None:
    dtype = "float32" if "float32" in common_dtypes(backend) else common_dtypes(backend)[0]
    values = edge_values(dtype, (64,))
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
