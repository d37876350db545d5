"""Arrays whose values are known, the tests that run over them, and how these read values and memory.

A check is a function of a backend's name and a `Sample`. It runs over a sweep: every layout with every dtype,
and with every kind of shape. Nothing is drawn, so a fault cannot hide in a pair that was left out.
`XBRIDGE_TEST_DTYPES` limits the dtypes.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial, wraps
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from xbridge.errors import XBridgeError
from xbridge.extend import CPU, DTYPES, HOST, get_backend, native_dtype
from xbridge.protocol import MemoryLayout
from xbridge.testing.samples.lookup import dtypes_of, make_sample, samples_of, states_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, TypeAlias

    from xbridge import Device
    from xbridge.protocol import Array, HostArray
    from xbridge.testing.samples import Sample

    Shape: TypeAlias = tuple[int, ...]
    Check: TypeAlias = Callable[[str, Sample], None]

FULL_SHAPE: Shape = (3, 4)
"""A shape with enough elements for every edge value."""

SHAPES: tuple[Shape, ...] = ((), (5,), (2, 0), (1,), (2, 3, 2), (0,), (1, 2, 1, 2))


DTYPE_OF_EACH_KIND = ("float32", "complex128", "int16", "bool")
"""For tests in which the device matters more than the dtype."""


DTYPES_SETTING = "XBRIDGE_TEST_DTYPES"
"""The environment variable that names the dtypes of a sweep, such as `float32,bool`. Unset: all of them."""


def common_dtypes(backend: str) -> tuple[str, ...]:
    """Return the canonical dtypes that both the library and the host have."""
    return tuple(dtypes_of(get_backend(backend)))


def swept_dtypes(backend: str) -> tuple[str, ...]:
    """Return the dtypes of a sweep: all common ones, or those of them that `XBRIDGE_TEST_DTYPES` names."""
    chosen = os.environ.get(DTYPES_SETTING, "").split(",")
    return tuple(word for word in common_dtypes(backend) if word in chosen) or common_dtypes(backend)


def edge_values(dtype: str, shape: Shape, turn: int = 0) -> HostArray:
    """Make values whose loss is visible: signed zeros, NaNs with a payload, ends of ranges, any bits."""
    made = native_dtype(dtype)
    size = int(np.prod(shape, dtype=int))
    if made.kind == "b":
        flags: HostArray = (np.arange(size) * 5 + turn) % 3 == 1
        return flags.reshape(shape)
    parts = 2 if made.kind == "c" else 1
    code = np.dtype(f"u{made.itemsize // parts}")
    rng = np.random.default_rng(crc32(f"{dtype} {shape} {turn}".encode()))
    bits = rng.integers(0, np.iinfo(code).max, size * parts, code, endpoint=True)
    ends = np.roll(np.array(_specials(dtype, code), code), turn)[: bits.size]
    bits[: ends.size] = ends
    values: HostArray = bits.view(made).reshape(shape)
    return values


def _specials(dtype: str, code: np.dtype[Any]) -> list[int]:
    sign = 1 << 8 * code.itemsize - 1
    ends = [sign, 1, sign - 1, 2 * sign - 1]
    if DTYPES[dtype].kind not in ("float", "complex") or code.itemsize == 1:
        return ends
    part = native_dtype({"complex64": "float32", "complex128": "float64"}.get(dtype, dtype))
    infinity = int(np.array(np.inf).astype(part).view(code))
    quiet = infinity | infinity >> 1
    return [*ends, infinity, infinity | sign, infinity + 1, quiet + 5, quiet | sign | 3, infinity - 1]


def variants(name: str, layout: str, values: HostArray, device: Device = CPU) -> Iterator[Sample]:
    """Yield a sample with that layout, then a read-only one, then one that requires grad."""
    for state in states_of(samples_of(name).cases, layout, values.dtype.name, device):
        yield make_sample(name, layout, values, device, state)


def plain_array(name: str, values: HostArray) -> Array:
    """Make an ordinary array: without a graph, and writable if the library has writable arrays."""
    cases = samples_of(name).cases
    fit = [
        layout
        for layout, case in cases.items()
        if not (case.tracked or case.fold) and case.takes(values.dtype.name, values.shape)
    ]
    return make_sample(name, max(fit, key=lambda layout: cases[layout].writable), values).array


def sweep(name: str, dtypes: Iterable[str], device: Device = CPU) -> Iterator[Sample]:
    """Yield samples of every layout with every dtype, and with every kind of shape in one dtype."""
    module, wanted = get_backend(name), tuple(dtypes)
    usual = [word for word in ("float32", "complex64") if not module.unsupported_dtype(word, device)]
    for turn, (layout, case) in enumerate(samples_of(name).cases.items()):
        pairs = [(dtype, FULL_SHAPE) for dtype in wanted if case.takes(dtype, FULL_SHAPE)]
        for shape in SHAPES:
            pairs += [(dtype, shape) for dtype in (*usual, *wanted) if case.takes(dtype, shape)][:1]
        for dtype, shape in pairs:
            yield from variants(name, layout, edge_values(dtype, shape, turn), device)


def sweep_devices(name: str) -> Iterator[Sample]:
    """Yield samples of a dtype of each kind on every device but the host; none was read or waited for."""
    module = get_backend(name)
    for device in module.devices()[1:]:
        here = [dtype for dtype in DTYPE_OF_EACH_KIND if not module.unsupported_dtype(dtype, device)]
        yield from sweep(name, here, device)


def sweep_everywhere(name: str, dtypes: tuple[str, ...]) -> Iterator[Sample]:
    """Yield the samples of both sweeps."""
    yield from sweep(name, dtypes)
    yield from sweep_devices(name)


def _over(check: Check, samples: Callable[[str], Iterator[Sample]]) -> Callable[[str], None]:
    @wraps(check)
    def test(backend: str) -> None:
        for sample in samples(backend):
            with ExitStack() as stack:
                stack.push(partial(_add_note, sample))
                check(backend, sample)

    del test.__wrapped__  # pytest would ask for the arguments of the check
    return test


def _add_note(sample: Sample, _kind: object, error: BaseException | None, _trace: object) -> None:
    """Add a note on the sample to an exception."""
    if error is not None:
        values = sample.values
        held = f"it holds {values.dtype} of shape {values.shape}:\n{values!r}"
        error.add_note(f"the array has the layout {sample.layout!r}; {held}")


for_own_arrays = partial(_over, samples=lambda backend: sweep(backend, swept_dtypes(backend)))
"""Make a test that runs over the backend's arrays in host memory."""

for_device_arrays = partial(_over, samples=sweep_devices)
"""Make a test that runs over the backend's arrays on other devices than the host."""

for_all_arrays = partial(_over, samples=lambda backend: sweep_everywhere(backend, swept_dtypes(backend)))
"""Make a test that runs over the backend's arrays on all devices."""

for_host_arrays = partial(_over, samples=lambda backend: sweep(HOST, swept_dtypes(backend)))
"""Make a test that runs over NumPy arrays of the dtypes that the backend has."""


# -- reads of values and memory --------------------------------------------------------------------
# They do not use the functions under test. NumPy arrays give their own addresses. For other arrays only the
# backend knows the address, so the suite first tests that `memory_layout` is correct.


def read(backend: str, x: Array) -> HostArray:
    """Read the values of an array by the library's own means."""
    return samples_of(backend).read(x)


def same_bits(found: HostArray, values: HostArray) -> bool:
    """Return True if two host arrays have one dtype and shape, and the same bits."""
    alike = found.dtype == values.dtype and found.shape == values.shape
    return alike and found.tobytes() == values.tobytes()


def same_values(found: HostArray, values: HostArray) -> bool:
    """Return True if two arrays have one dtype and the same bits, except for the payloads of NaNs."""
    if found.dtype.kind != "c":
        quiet = [np.where(np.isnan(x), np.ones((), x.dtype), x) for x in (found, values)]
        return np.array_equal(np.isnan(found), np.isnan(values)) and same_bits(*quiet)
    return all(same_values(part(found), part(values)) for part in (np.real, np.imag))


def memory_of(backend: str, x: Array) -> MemoryLayout:
    """Return the memory layout of an array."""
    if isinstance(x, np.ndarray):
        address = int(x.__array_interface__["data"][0])
        return MemoryLayout(address, x.shape, x.strides, x.itemsize, x.flags.writeable)
    return get_backend(backend).memory_layout(x)


def default_device(backend: str) -> Device:
    """Return the default device of the library: the host, if the library has it."""
    return get_backend(backend).devices()[0]


def is_aligned(layout: MemoryLayout, alignment: int) -> bool:
    """Return True if every element begins at a multiple of the alignment."""
    steps = [stride for stride, n in zip(layout.strides, layout.shape, strict=True) if n > 1]
    return all(place % alignment == 0 for place in (layout.address, *steps))


def byte_addresses(layout: MemoryLayout) -> HostArray:
    """Return the address of every byte, sorted."""
    if layout.is_unallocated():
        return np.empty(0, np.intp)
    addresses = np.asarray(layout.address)
    for n, stride in zip((*layout.shape, layout.itemsize), (*layout.strides, 1), strict=True):
        addresses = np.add.outer(addresses, np.arange(n) * stride)
    return np.unique(addresses)


def disjoint(a: MemoryLayout, b: MemoryLayout) -> bool:
    """Return True if two arrays have no byte in common."""
    return not np.intersect1d(byte_addresses(a), byte_addresses(b), assume_unique=True).size


def same_memory(a: MemoryLayout, b: MemoryLayout) -> bool:
    """Return True if two arrays consist of the same bytes."""
    return np.array_equal(byte_addresses(a), byte_addresses(b))


def refused_write(backend: str, x: Array) -> bool:
    """Write by the library's own means, and return True if the library refuses."""
    try:
        samples_of(backend).write(x)
    except (ValueError, TypeError, RuntimeError):
        return True
    return False


def error_of(call: Callable[..., Any], /, *args: Any, **options: Any) -> XBridgeError | None:
    """Return the error that a call raises, after a check of its message; None if it returns."""
    try:
        call(*args, **options)
    except XBridgeError as error:
        words = str(error)
        assert words.startswith("cannot ")
        assert not words.endswith("; try ")
        return error
    return None
