"""Array info and memory layout: every plan is decided by them, so they must be correct for every array."""

from __future__ import annotations

from typing import TYPE_CHECKING
from warnings import catch_warnings

import numpy as np
import pytest

from xbridge import Device, asarray, backend_of, device_of, dtype_of, to_backend
from xbridge.errors import DTypeError, XBridgeError
from xbridge.extend import CPU, DTYPES, category, get_backend, is_inexact, native_dtype
from xbridge.protocol import ArrayInfo, MemoryLayout, Unsupported
from xbridge.testing._raw_memory import in_place
from xbridge.testing.conformance._cases import (
    common_dtypes,
    default_device,
    edge_values,
    for_own_arrays,
    is_aligned,
    plain_array,
    refused_write,
    same_bits,
)
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from xbridge.protocol import HostArray
    from xbridge.testing.samples import Sample

NUMPY_DTYPES = (
    np.dtype("f4"),
    np.float32,
    np.dtype(">f4"),
    np.dtype("M8[s]"),
    np.dtype("i4,f4"),
    np.floating,
)
OTHER_OBJECTS = (None, 3, "float32", "cpu", object(), object, int, (), Device("cpu"))


@for_own_arrays
def test_array_info_matches_the_array(backend: str, sample: Sample) -> None:
    info = get_backend(backend).array_info(sample.array)
    assert type(info) is ArrayInfo
    assert info.dtype == sample.values.dtype.name
    assert info.shape == sample.values.shape
    assert type(info.shape) is tuple
    assert {type(n) for n in info.shape} <= {int}
    assert info.device == default_device(backend)
    assert type(info.device) is Device
    assert info.requires_grad is sample.tracked
    assert type(info.native_byteorder) is bool
    assert (dtype_of(sample.array), device_of(sample.array)) == (info.dtype, info.device)


@for_own_arrays
def test_memory_layout_points_at_the_bytes(backend: str, sample: Sample) -> None:
    module = get_backend(backend)
    info, layout = module.array_info(sample.array), module.memory_layout(sample.array)
    assert type(layout) is MemoryLayout
    assert (layout.shape, layout.itemsize) == (sample.values.shape, sample.values.itemsize)
    assert {type(n) for n in (layout.address, layout.itemsize, *layout.shape, *layout.strides)} <= {int}
    assert len(layout.strides) == len(layout.shape)
    if layout.is_unallocated():
        assert not (layout.materialized and sample.values.size), "a materialized array has an address"
        return
    if "host" in module.gaps:
        pytest.skip(f"the memory of {backend} cannot be read: {module.gaps['host']}")
    matches = same_bits(
        _values_in(layout, sample.values.dtype.name, native=info.native_byteorder), sample.values
    )
    assert matches or not layout.materialized, "the memory holds other bytes"
    assert module.memory_layout(plain_array(backend, sample.values)).materialized, (
        "a plain array is materialized"
    )


def _values_in(layout: MemoryLayout, dtype: str, *, native: bool) -> HostArray:
    """Return the bytes in memory as values, before any pending operation."""
    kind = native_dtype(dtype)
    raw = np.ascontiguousarray(in_place(layout)).reshape((*layout.shape, layout.itemsize))
    count = 2 if kind.kind == "c" else 1
    parts = raw.reshape((*layout.shape, count, layout.itemsize // count))
    raw = np.ascontiguousarray(parts if native else parts[..., ::-1])
    return raw.reshape(-1).view(kind).reshape(layout.shape)


@for_own_arrays
def test_memory_layout_reports_alignment(backend: str, sample: Sample) -> None:
    layout = get_backend(backend).memory_layout(sample.array)
    assert layout.aligned is is_aligned(layout, sample.values.dtype.alignment) or not sample.values.size


@for_own_arrays
def test_memory_layout_reports_read_only_arrays(backend: str, sample: Sample) -> None:
    module, layout = get_backend(backend), get_backend(backend).memory_layout(sample.array)
    assert type(layout.writable) is bool
    if not module.readonly:
        assert layout.writable, "the library has no read-only arrays"
    elif not (sample.tracked or layout.may_overlap_itself()) and sample.values.size:
        assert layout.writable is sample.writable
        assert refused_write(backend, sample.array) is not sample.writable


@for_own_arrays
def test_ordinary_arrays_are_supported(backend: str, sample: Sample) -> None:
    assert get_backend(backend).unsupported(sample.array, leaving=True) is None
    assert get_backend(backend).unsupported(sample.array, leaving=False) is None


def test_unsupported_arrays_have_an_owner_array_info_and_a_reason(backend: str) -> None:
    module = get_backend(backend)
    for what, make in samples_of(backend).refused.items():
        x = make()
        assert module.owns(type(x)) is True, what
        assert backend_of(x) == backend, what
        info = module.array_info(x)
        assert type(info) is ArrayInfo, what
        assert (type(info.dtype), type(info.device), type(info.shape)) == (str, Device, tuple), what
        refused = module.unsupported(x, leaving=True)
        if refused is None:
            assert info.dtype not in DTYPES, f"{what}: it would be converted"
            continue
        assert type(refused) is Unsupported, what
        assert issubclass(refused.error, XBridgeError), what
        assert refused.reason.strip(), what
        assert type(refused.hint) is str, what
        assert module.unsupported(x, leaving=False) in (None, refused), what


# -- dtypes --------------------------------------------------------------------------------------


def test_dtype_name_reads_dtypes_of_the_library(backend: str) -> None:
    module = get_backend(backend)
    for word in common_dtypes(backend):
        x = plain_array(backend, edge_values(word, (2,)))
        if hasattr(x, "dtype"):
            assert module.dtype_name(x.dtype) == word
            assert dtype_of(to_backend(x, backend, dtype=x.dtype)) == word
    assert [thing for thing in OTHER_OBJECTS if module.dtype_name(thing) is not None] == []


def test_dtype_name_reads_dtypes_of_numpy_or_returns_none(backend: str) -> None:
    names = [get_backend(backend).dtype_name(thing) for thing in NUMPY_DTYPES]
    assert {type(name) for name in names} <= {str, type(None)}
    assert set(names[:2]) <= {"float32", None}
    assert "float32" not in names[3:]


def test_unsupported_dtype_gives_a_reason(backend: str) -> None:
    module = get_backend(backend)
    assert common_dtypes(backend), "the library and the host have no dtype in common"
    for word in (*DTYPES, "longdouble", "no such dtype"):
        lacks = module.unsupported_dtype(word, CPU)
        assert lacks is None or type(lacks) is Unsupported
        if lacks:
            assert lacks.error is DTypeError
            assert lacks.reason
            assert type(lacks.hint) is str
    assert module.unsupported_dtype("no such dtype", CPU)


def test_the_library_cannot_make_its_unsupported_dtypes(backend: str) -> None:
    module = get_backend(backend)
    if "namespace" in module.gaps:
        return
    xp = module.namespace(plain_array(backend, edge_values("bool", (2,))))
    lacked = [word for word in DTYPES if module.unsupported_dtype(word, CPU)]
    named = [getattr(xp, word) for word in lacked if module.dtype_name(getattr(xp, word, None)) == word]
    with catch_warnings(action="ignore"):  # a library may warn that it makes another dtype instead
        made = [dtype_of(xp.empty(0, dtype=dtype)) for dtype in named]
    assert set(made).isdisjoint(lacked)


def test_default_dtypes_are_supported_and_of_their_category(backend: str) -> None:
    module = get_backend(backend)
    numbers = {"bool": True, "int": 1, "float": 0.5, "complex": 0.5j}
    for kind in dict.fromkeys(map(category, common_dtypes(backend))):
        for device in module.devices():
            default = module.default_dtype(kind, device)
            assert category(default) == kind
            assert is_inexact(default) is (kind in ("float", "complex"))
            assert module.unsupported_dtype(default, device) is None
        assert dtype_of(asarray(numbers[kind], backend=backend)) == module.default_dtype(kind, CPU)
