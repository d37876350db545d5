"""Memory is shared where that is safe, and nowhere else; `copy` means what it says.

What must be shared follows from how an array lies and from the facts of the library. Whether it is shared is
seen by addresses, and by a write on one side that shows on the other, or does not.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from xbridge import _host
from xbridge._api import to_backend, to_numpy
from xbridge._core.devices import CPU
from xbridge._core.protocol import ArrayInfo
from xbridge._inspect import shares_memory
from xbridge.backends import HOST
from xbridge.backends._registry import get
from xbridge.errors import CopyError
from xbridge.testing._gaps import promise
from xbridge.testing.conformance._cases import (
    WHOLE,
    held,
    of_its_own,
    of_the_host,
    plain,
    sweep,
    swept,
    telling,
)
from xbridge.testing.conformance._probes import (
    apart,
    home,
    is_aligned,
    poke,
    read,
    reads_in,
    refusal_of,
    refused_write,
    same_bits,
    spot,
    together,
    within_reach,
)
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from xbridge._core.protocol import Array, HostArray
    from xbridge.testing.samples.model import Sample


def _host_facts(host: HostArray) -> ArrayInfo:
    return ArrayInfo(host.dtype.newbyteorder("=").name, CPU, host.shape, native_byteorder=host.dtype.isnative)


def _is_taken(backend: str, host: HostArray) -> bool:
    """Whether the library is to look at memory of the host as it is."""
    module, layout = get(backend), get(HOST).memory_layout(host)
    if backend == HOST or reads_in(module):
        return backend == HOST
    guarded = not host.flags.writeable or layout.may_overlap_itself()
    return (
        module.accepts_layout(_host_facts(host), layout)
        and not module.assumes_immutable
        and (module.readonly or not guarded)
    )


# -- sharing -------------------------------------------------------------------------------------


@of_its_own
def test_nothing_to_change_gives_the_array_itself(backend: str, sample: Sample) -> None:
    x = sample.array
    assert to_backend(x, backend) is x
    assert to_backend(x, backend, device=home(backend), copy=False) is x
    if get(backend).array_info(x).native_byteorder:
        assert to_backend(x, backend, dtype=sample.values.dtype.name) is x


@promise("host")
@of_its_own
def test_numpy_looks_at_the_memory_unless_something_is_pending_on_it(backend: str, sample: Sample) -> None:
    materialized = get(backend).memory_layout(sample.array).materialized
    host = to_numpy(sample.array)
    if materialized:
        assert together(spot(HOST, host), spot(backend, sample.array))
        assert together(spot(HOST, to_numpy(sample.array, copy=False)), spot(backend, sample.array))
        return
    assert apart(spot(HOST, host), spot(backend, sample.array))
    if sample.values.size:
        assert isinstance(refusal_of(to_numpy, sample.array, copy=False), CopyError)


@promise("host")
@of_the_host
def test_the_library_looks_at_memory_of_the_host_where_that_is_safe(backend: str, sample: Sample) -> None:
    taken = _is_taken(backend, sample.array)
    x = to_backend(sample.array, backend)
    if taken:
        assert together(spot(backend, x), spot(HOST, sample.array))
        assert together(
            spot(backend, to_backend(sample.array, backend, copy=False)), spot(HOST, sample.array)
        )
    else:
        assert apart(spot(backend, x), spot(HOST, sample.array))
        if sample.values.size:
            assert isinstance(refusal_of(to_backend, sample.array, backend, copy=False), CopyError)


@of_its_own
def test_a_write_to_shared_memory_shows_on_the_other_side(backend: str, sample: Sample) -> None:
    host = to_numpy(sample.array)
    if get(backend).memory_layout(sample.array).materialized:
        poke(within_reach(backend, sample.array), sample.values.dtype.name)
        assert same_bits(read(HOST, host), read(backend, sample.array))
        assert same_bits(read(HOST, host), sample.values) == (sample.values.size == 0)


@promise("sharing")
def test_dense_memory_of_the_host_is_taken_as_it_is(backend: str) -> None:
    module = get(backend)
    for dtype in swept(backend):
        for shape in (WHOLE, (), (5,)):
            host = telling(dtype, shape)
            assert module.accepts_layout(_host_facts(host), get(HOST).memory_layout(host))
            assert together(spot(backend, module.from_numpy(host)), spot(HOST, host))


@promise("host")
@of_the_host
def test_what_it_says_that_it_holds_it_holds(backend: str, sample: Sample) -> None:
    module, host = get(backend), sample.array
    assert "host" not in module.gaps, "its arrays are nowhere in host memory"
    if module.accepts_layout(_host_facts(host), get(HOST).memory_layout(host)):
        x = module.from_numpy(host.view(np.ndarray))
        assert same_bits(read(backend, x), sample.values)
        layout = module.memory_layout(x)
        assert together(layout, spot(HOST, host)) or layout.is_unallocated() or reads_in(module)
        assert module.array_info(x).dtype == sample.values.dtype.name
        assert layout.aligned is is_aligned(layout, host.dtype.alignment) or not host.size


@promise("host")
@of_its_own
def test_a_view_on_the_host_is_a_view(backend: str, sample: Sample) -> None:
    module = get(backend)
    x = module.detach(sample.array) if sample.tracked else sample.array
    if module.memory_layout(x).materialized:
        host = module.to_numpy(x)
        assert type(host) is np.ndarray
        assert together(spot(HOST, host), spot(backend, sample.array))
        assert same_bits(read(HOST, host), sample.values)


# -- copies --------------------------------------------------------------------------------------


def _copies(backend: str, x: Array) -> list[tuple[str, Array]]:
    """Everything that must be new memory."""
    module, name = get(backend), get(backend).array_info(x).dtype
    made = [(backend, to_backend(x, backend, copy=True)), (HOST, to_numpy(x, copy=True))]
    made += [(backend, module.copy(x)), (HOST, to_numpy(x, copy=True, dtype=name))]
    wider = "complex128" if name.startswith("complex") else "float64"
    if wider in held(backend) and wider != name:
        made += [(backend, module.astype(x, wider)), (HOST, to_numpy(x, dtype=wider))]
    return made


@of_its_own
def test_a_copy_shares_no_memory_and_no_fate(backend: str, sample: Sample) -> None:
    for name, copied in _copies(backend, sample.array):
        assert apart(spot(name, copied), spot(backend, sample.array))
        before = read(name, copied)
        poke(within_reach(backend, sample.array), sample.values.dtype.name)
        assert same_bits(read(name, copied), before)
        poke(within_reach(backend, sample.array), sample.values.dtype.name)
        poke(within_reach(name, copied), get(name).array_info(copied).dtype)
        assert same_bits(read(backend, sample.array), sample.values)


@of_the_host
def test_a_copy_from_the_host_shares_no_memory_and_no_fate(backend: str, sample: Sample) -> None:
    copied = to_backend(sample.array, backend, copy=True)
    assert apart(spot(backend, copied), spot(HOST, sample.array))
    poke(spot(HOST, sample.array), sample.values.dtype.name)
    assert same_bits(read(backend, copied), sample.values)
    if any(way.writable for way in samples_of(backend).ways.values()):
        assert not refused_write(backend, copied), "it is the caller's own"


@of_its_own
def test_a_copy_on_the_host_is_the_callers_own(backend: str, sample: Sample) -> None:
    host = to_numpy(sample.array, copy=True)
    assert host.flags.writeable
    assert host.flags.owndata or host.base is not None
    samples_of(HOST).write(host)
    assert same_bits(read(backend, sample.array), sample.values)


def _order(strides: tuple[int, ...], shape: tuple[int, ...]) -> list[int]:
    """The axes along which there is somewhere to go, the longest way first."""
    axes = [axis for axis, n in enumerate(shape) if n > 1]
    return sorted(axes, key=lambda axis: -abs(strides[axis]))


@promise("axis_order")
def test_a_copy_is_dense_and_keeps_the_order_of_the_axes(backend: str) -> None:
    for name in dict.fromkeys((backend, HOST)):
        for sample in sweep(name, swept(backend)):
            source = get(name).memory_layout(sample.array)
            if source.may_overlap_itself() or not sample.values.size:
                continue
            copies = [(target, to_backend(sample.array, target, copy=True)) for target in (backend, HOST)]
            for target, copied in [*copies, (name, get(name).copy(sample.array))]:
                layout = spot(target, copied)
                if layout.is_unallocated():
                    continue
                low, high = layout.span()
                assert high - low == sample.values.nbytes, "the copy has holes"
                order = _order(source.strides, source.shape)
                assert _order(layout.strides, layout.shape) == order, sample.way


# -- leave to write ------------------------------------------------------------------------------


@promise("host")
@of_its_own
def test_numpy_may_write_what_the_library_writes_and_nobody_follows(backend: str, sample: Sample) -> None:
    if backend == HOST:
        return
    module, host = get(backend), to_numpy(sample.array)
    layout = module.memory_layout(sample.array)
    shut = sample.tracked or layout.may_overlap_itself() or not layout.writable
    if layout.materialized:
        assert host.flags.writeable is not shut
    if not host.flags.writeable and sample.values.size:
        with pytest.raises(ValueError, match="WRITEABLE"):
            host.flags.writeable = True
        with pytest.raises(ValueError, match="read-only"):
            samples_of(HOST).write(host)
        assert same_bits(read(backend, sample.array), sample.values)


@of_the_host
def test_what_may_not_be_written_is_not_written_through_the_library(backend: str, sample: Sample) -> None:
    if backend == HOST:
        return
    x, layout = to_backend(sample.array, backend), get(HOST).memory_layout(sample.array)
    if layout.may_overlap_itself() or not layout.writable:
        assert apart(spot(backend, x), spot(HOST, sample.array)) or not spot(backend, x).writable
        refused_write(backend, x)
        assert same_bits(read(HOST, sample.array), sample.values)


@promise("readonly")
def test_memory_that_may_not_be_written_is_looked_at_read_only(backend: str) -> None:
    dtype = "float32" if "float32" in held(backend) else held(backend)[0]
    module, host = get(backend), _host.copy(telling(dtype, (1 << 16,)), "C")  # where everybody takes it over
    values = host.copy()
    host.flags.writeable = False
    x = module.from_numpy(host)
    assert module.owns(type(x)), "the host's array stands for an array of the library"
    layout = module.memory_layout(x)
    assert layout.is_unallocated() or together(layout, spot(HOST, host))
    assert not layout.writable
    assert refused_write(backend, x)
    assert same_bits(read(HOST, host), values)


# -- who holds it --------------------------------------------------------------------------------


def test_an_array_keeps_the_memory_of_the_host_that_it_looks_at(backend: str) -> None:
    dtype = "float32" if "float32" in held(backend) else held(backend)[0]
    values = telling(dtype, (64,))
    owner = bytearray(values.tobytes())
    host = np.frombuffer(owner, values.dtype)
    x = to_backend(host, backend)
    shares = together(spot(backend, x), spot(HOST, host))
    del host
    gc.collect()
    if shares:
        with pytest.raises(BufferError):
            owner.append(0)
    assert same_bits(read(backend, x), values)
    del x
    gc.collect()
    owner.append(0)


def test_the_host_keeps_the_memory_of_an_array_that_it_looks_at(backend: str) -> None:
    dtype = "float32" if "float32" in held(backend) else held(backend)[0]
    values = telling(dtype, (1 << 14,))
    views = [to_numpy(plain(backend, values)), get(backend).to_numpy(plain(backend, values))]
    gc.collect()
    others = [np.full_like(values, 1) for _ in range(8)]
    assert all(same_bits(view, values) for view in views)
    assert all(same_bits(other, others[0]) for other in others)


@promise("host")
@of_its_own
def test_shared_memory_is_told_from_memory_apart(backend: str, sample: Sample) -> None:
    if sample.values.size:
        layout = get(backend).memory_layout(sample.array)
        assert shares_memory(sample.array, sample.array) is not layout.is_unallocated()
        assert shares_memory(sample.array, to_numpy(sample.array)) is layout.materialized
        assert not shares_memory(to_backend(sample.array, backend, copy=True), sample.array)
    assert not shares_memory(sample.array, plain(backend, sample.values))
