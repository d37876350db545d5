"""CuPy's backend over a stub of CuPy: what it decides and refuses, and that what moves has arrived.

What CuPy itself does is tested in `test_gpu.py`, where there is a GPU.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stub_cupy
from inside import native_dtype

import xbridge

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

pytestmark = pytest.mark.usefixtures("own_registry")


def sent(values: Any, **options: Any) -> Any:
    return xbridge.to_backend(np.asarray(values), "cupy", **options)


# -- whether it is there -------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
def test_to_backend__missing_cupy_says_how_to_install() -> None:
    """Without CuPy, the error says how to install it."""
    with pytest.raises(xbridge.MissingLibraryError, match=r"try pip install 'xbridge-array\[cupy\]'"):
        xbridge.to_backend(np.ones(2), "cupy")
    assert not xbridge.is_available("cupy")
    assert "cupy" in xbridge.known_backends()


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        (
            stub_cupy.CUDARuntimeError("cudaErrorInsufficientDriver: too old"),
            "cudaErrorInsufficientDriver: too old",
        ),
        (0, "its driver finds no GPU"),
    ],
    ids=["no driver", "no device"],
)
def test_is_available__false_without_a_gpu(
    count: int | RuntimeError, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CuPy without a GPU is not available, and the error says why."""
    stub_cupy.install(monkeypatch, stub_cupy.module(count))
    for _ in range(2):
        with pytest.raises(
            xbridge.MissingLibraryError, match=f"CuPy is installed, and .*{reason}$"
        ) as caught:
            xbridge.to_backend(np.ones(2), "cupy")
        assert not isinstance(caught.value.__cause__, xbridge.XBridgeError)
        assert not xbridge.is_available("cupy")
    assert xbridge.to_numpy(np.ones(2)).tolist() == [1.0, 1.0]


# -- to the GPU and back -------------------------------------------------------------------------


def test_to_backend__uses_the_current_device(cupy: ModuleType) -> None:
    """A host array goes to CuPy's current device unless another one is named."""
    assert xbridge.device_of(sent([1.0])) == "cuda:0"
    assert xbridge.device_of(sent([1.0], device="cuda:1")) == "cuda:1"
    with stub_cupy.Device(1):
        for device in (None, "gpu", "cuda"):
            assert xbridge.device_of(sent([1.0], device=device)) == "cuda:1"
        assert xbridge.device_of(xbridge.asarray([1, 2], backend="cupy")) == "cuda:1"
        assert xbridge.device_of(xbridge.asarray([np.ones(2), np.ones(2)], backend="cupy")) == "cuda:1"
        assert xbridge.device_of(xbridge.align(np.ones(2), backend="cupy")[0]) == "cuda:1"
    assert stub_cupy.state.current == 0


def test_asarray__list_stays_on_its_device(cupy: ModuleType) -> None:
    """Arrays on a GPU that is not the current one are stacked on their device."""
    x = sent([1.0, 2.0], device="cuda:1")
    assert xbridge.to_backend(x, "cupy", device="gpu") is x
    assert xbridge.device_of(xbridge.asarray([x, x])) == "cuda:1"


def test_to_backend__refuses_the_host_and_missing_devices(cupy: ModuleType) -> None:
    """The host and devices that do not exist are refused with a list of those that do."""
    for device in ("cpu", "cuda:2", "mps", "rocm:0"):
        with pytest.raises(xbridge.DeviceError, match="here, only cuda:0, cuda:1; try device='cuda:0'"):
            sent([1.0], device=device)
    with pytest.raises(xbridge.DeviceError, match="cupy has no device"):
        xbridge.to_backend(sent([1.0]), "cupy", device="cpu")


def test_to_backend__transfer_is_complete_on_return(cupy: ModuleType) -> None:
    """Once the call returns, the source may be written without a change to the result."""
    a = np.arange(4.0)
    x = xbridge.to_backend(a, "cupy")
    a[:] = -1
    assert x._memory.tolist() == [0.0, 1.0, 2.0, 3.0]
    y = xbridge.to_backend(x, "cupy", device="cuda:1")
    assert y._memory.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not np.shares_memory(x._memory, y._memory)
    late = cupy.asarray(np.arange(3.0))
    assert xbridge.to_numpy(late).tolist() == [0.0, 1.0, 2.0]


def test_transfer__uses_the_callers_device_and_stream(cupy: ModuleType) -> None:
    """A worker, and the iterable in it, use the device and wait for the stream of the calling thread."""

    def batches() -> Iterator[Any]:
        assert cupy.cuda.get_current_stream().ptr == 7
        yield [late, np.ones(2), cupy.asarray(np.arange(2.0))]

    with cupy.cuda.Device(1), cupy.cuda.Stream(7) as mine:
        late = cupy.asarray(np.arange(3.0))
        there, back = (xbridge.transfer(x, to) for x, to in ((np.ones(2), "cupy"), (late, "numpy")))
        assert back.result().tolist() == [0.0, 1.0, 2.0]
        assert there.result().device.id == 1
        waited = mine.waits
        (ahead,) = xbridge.prefetch(batches(), "cupy", dtype="float32")
    assert [x._memory.tolist() for x in ahead] == [[0.0, 1.0, 2.0], [1.0, 1.0], [0.0, 1.0]]
    assert {x.device.id for x in ahead} == {1}
    assert mine.waits > waited


# -- dtypes --------------------------------------------------------------------------------------


def test_to_backend__bfloat16_needs_cupy_14(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 is refused by CuPy 13 and converted by CuPy 14."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a = np.ones(2, ml_dtypes.bfloat16)
    stub_cupy.install(monkeypatch, stub_cupy.module(version="13.6.0"))
    with pytest.raises(xbridge.DTypeError, match=r"CuPy has no bfloat16; try dtype='nearest'$"):
        xbridge.to_backend(a, "cupy")
    xbridge.register_backend("cupy", "nothing", replace=True)
    stub_cupy.install(monkeypatch, stub_cupy.module())
    xbridge.register_backend("cupy", "xbridge.backends.cupy", replace=True)
    x = xbridge.to_backend(a, "cupy")
    assert (xbridge.dtype_of(x), xbridge.to_list(x)) == ("bfloat16", [1.0, 1.0])
    assert xbridge.to_list(xbridge.to_backend(a.astype("f4"), "cupy", dtype="bfloat16")) == [1.0, 1.0]


# -- what is refused -----------------------------------------------------------------------------


def test_to_numpy__refuses_subclasses_and_records(cupy: ModuleType) -> None:
    """Subclasses and structured dtypes stay in CuPy, and the error says how to convert them."""

    class Units(cupy.ndarray):  # type: ignore[misc,name-defined] # made at run time
        """With a unit."""

    x = sent([1.0, 2.0])
    marked = x.view(type=Units)
    assert xbridge.backend_of(marked) == "cupy"
    assert xbridge.to_backend(marked, "cupy") is marked
    with pytest.raises(xbridge.UnsupportedArrayError, match=re.escape("try x.view(type=cupy.ndarray)")):
        xbridge.to_numpy(marked)
    assert xbridge.to_list(marked.view(type=cupy.ndarray)) == [1.0, 2.0]
    fields = x.view(np.dtype([("re", "f4"), ("im", "f4")]))
    assert xbridge.dtype_of(fields).startswith("[('re'")
    with pytest.raises(xbridge.DTypeError, match="not a numeric dtype"):
        xbridge.to_numpy(fields)


def test_array_namespace__is_array_api_compat(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The namespace of a CuPy array is the one of array-api-compat."""
    import array_api_compat

    compat = type(cupy)("array_api_compat.cupy")
    monkeypatch.setitem(sys.modules, "array_api_compat.cupy", compat)
    monkeypatch.setattr(array_api_compat, "cupy", compat, raising=False)
    assert xbridge.array_namespace(sent([1.0])) is compat


def test_device_of__is_rocm_on_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    """On AMD's devices, the kind of device is `rocm`."""
    stub_cupy.install(monkeypatch, stub_cupy.module(hip=True))
    assert xbridge.device_of(sent([1.0])) == "rocm:0"
    assert xbridge.device_of(sent([1.0], device="rocm:1")) == "rocm:1"


@pytest.mark.parametrize(
    ("dtype", "other"),
    [
        *(("float32", other) for other in ("float64", "complex128", "bool")),
        *(("complex64", other) for other in ("complex128", "bool")),
        *(("float64", other) for other in ("float32", "complex64", "bfloat16")),
        *(("bfloat16", other) for other in ("float64", "bool")),
    ],
)
def test_to_backend__cast_keeps_subnormals(dtype: str, other: str, cupy: ModuleType) -> None:
    """A cast to any dtype keeps subnormal numbers as NumPy does."""
    if "bfloat16" in (dtype, other):
        pytest.importorskip("ml_dtypes")
    here, there = native_dtype(dtype), native_dtype(other)
    line = np.array([1e-45, -1e-40, 0.0, -0.0, 1.5, np.inf, 1e300])
    with np.errstate(over="ignore"):
        values = np.stack([line, line[::-1]]).astype(here)
        want = values.astype(there)
    for view, known in ((values, want), (values.T, want.T), (values[0, 0, ...], want[0, 0, ...])):
        made = xbridge.to_backend(sent(view), "cupy", dtype=other)
        assert (made.dtype, made.shape) == (there, view.shape)
        assert xbridge.to_numpy(made).tobytes() == known.tobytes()
