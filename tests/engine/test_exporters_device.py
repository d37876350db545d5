"""Exporters of device memory as sources, well behaved and not: let in by a stub of CuPy, or refused.

Everything is held against itself before a library sees it, so none of this needs a GPU. The memory is the
host's, and the capsules say that it is not.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stub_cupy
from exporters import Exporter, capsule
from inside import get_backend
from toylib import Toy, make_backend

import xbridge

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

pytestmark = pytest.mark.usefixtures("own_registry")


def memory() -> Any:
    return np.arange(6.0)


def raising(error: Exception, calls: list[object]) -> Callable[..., object]:
    def export(*, stream: object = None, max_version: object = None) -> object:
        calls.append(stream)
        raise error

    return export


def shown(a: Any, *, stale: bool = False, **words: Any) -> Exporter:
    """An exporter of a capsule that says CUDA; with `stale`, of one from before there were versions."""
    given = {"device": (2, 0), "name": b"dltensor" if stale else b"dltensor_versioned", **words}
    made: Any = capsule(a, **given)

    def export(*, stream: int, max_version: object = None) -> object:
        return made.__dlpack__()

    return Exporter(__dlpack__=export, __dlpack_device__=made.__dlpack_device__, owner=made)


# -- let in --------------------------------------------------------------------------------------


def test_import_device_array__shares_writable_memory(cupy: ModuleType) -> None:
    """Writable device memory is shared with a library that can import it."""
    a = memory()
    for options in ({}, {"copy": False}, {"device": "cuda:0"}, {"device": "gpu"}):
        x = xbridge.to_backend(shown(a), "cupy", **options)
        assert type(x) is cupy.ndarray
        a[0] += 1
        assert xbridge.to_list(x) == a.tolist()
        x[1:2] = xbridge.to_backend(np.array([9.0 + a[1]]), "cupy")
        assert xbridge.to_list(x) == a.tolist()
        assert xbridge.shares_memory(shown(a), x)


def test_import_device_array__copies_if_asked(cupy: ModuleType) -> None:
    """A call that asks for a copy, a cast or the host gets independent memory."""
    a = memory()
    made = [
        xbridge.to_backend(shown(a), "cupy", copy=True),
        xbridge.to_backend(shown(a), "cupy", device="cuda:1"),
        xbridge.to_backend(shown(a), "cupy", dtype="float32"),
        xbridge.to_numpy(shown(a)),
        xbridge.asarray(shown(a)),
        xbridge.asarray([shown(a), shown(a)])[1],
        xbridge.asarray([shown(a), shown(a)], backend="cupy")[1],
        xbridge.align(np.ones(2), shown(a))[1],
    ]
    a[:] = -1
    for x in made:
        assert xbridge.to_list(x) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert made[3].flags.writeable
    assert xbridge.to_list(shown(memory())) == memory().tolist()


def test_import_device_array__keeps_layout_and_dtype(cupy: ModuleType) -> None:
    """Strides, shapes and dtypes of an export arrive unchanged."""
    whole = np.arange(24.0).reshape(2, 3, 4)
    views = [whole, whole.T, whole[:, ::-1], whole[..., ::2], whole[:0], whole[0, 0, 0, ...]]
    views += [whole.astype(dtype) for dtype in ("?", "i1", "u2", "f2", "f4", "c8", "c16", "u8")]
    for view in views:
        x = xbridge.to_backend(shown(view), "cupy")
        assert (x.dtype, x.shape) == (view.dtype, view.shape)
        assert np.array_equal(xbridge.to_numpy(x), view)


@pytest.mark.parametrize(
    "export",
    [
        lambda a: shown(a, flags=1),
        lambda a: shown(a, stale=True),
        lambda a: shown(np.broadcast_to(a[:1], (6,)) if a.size else a),
    ],
    ids=["read-only", "before there were versions", "it repeats memory"],
)
def test_import_device_array__copies_read_only_memory(
    export: Callable[[Any], Exporter], cupy: ModuleType
) -> None:
    """Memory that must not be written is copied, and `copy=False` raises."""
    a = np.zeros(6)
    x = xbridge.to_backend(export(a), "cupy")
    a[:] = -1
    assert xbridge.to_list(x) == [0.0] * 6
    with pytest.raises(xbridge.CopyError, match="may not be written, and cupy has no read-only arrays"):
        xbridge.to_backend(export(a), "cupy", copy=False)
    assert xbridge.to_list(xbridge.to_backend(export(a[:0]), "cupy", copy=False)) == []


def test_import_device_array__refuses_to_share_a_copy(cupy: ModuleType) -> None:
    """An exporter that hands out copies is rejected with `copy=False`."""
    a = memory()
    x = xbridge.to_backend(shown(a, flags=3), "cupy")
    assert x.data.ptr == a.ctypes.data
    for given in (shown(a, flags=2), Exporter(**other_memory())):
        with pytest.raises(
            xbridge.CopyError,
            match=r"^cannot share the memory of an Exporter: it hands out a copy; try copy=None$",
        ):
            xbridge.to_backend(given, "cupy", copy=False)


def other_memory() -> dict[str, Any]:
    """The words of an exporter of other memory each time."""
    kept: list[Any] = []

    def export(**_: object) -> object:
        kept.append(capsule(memory().copy(), device=(2, 0)))
        handed: object = kept[-1].__dlpack__()
        return handed

    return {"__dlpack__": export, "__dlpack_device__": lambda: (2, 0)}


def test_import_device_array__passes_the_consumers_stream(cupy: ModuleType) -> None:
    """The stream passed to `__dlpack__` belongs to the device of the memory, which is current."""
    a, asked = memory(), []
    made: Any = capsule(a, device=(2, 1))

    def export(*, stream: int, max_version: object = None) -> object:
        asked.append((stub_cupy.state.current, stream, max_version))
        return made.__dlpack__()

    x = Exporter(__dlpack__=export, __dlpack_device__=lambda: (2, 1))
    assert xbridge.device_of(xbridge.to_backend(x, "cupy")) == "cuda:1"
    assert asked == [(1, stub_cupy.state.streams[1].ptr, (1, 0))]


def test_import_device_array__skips_lazy_importers(cupy: ModuleType) -> None:
    """A library that reads memory later gets a copy and never imports for another one."""
    backend: Any = get_backend("cupy")
    later: dict[str, Any] = {
        "array_info": lambda x: backend.array_info(x.data),
        "devices": backend.devices,
        "resolve_device": backend.resolve_device,
        "unsupported_dtype": backend.unsupported_dtype,
        "from_dlpack": lambda given: Toy(backend.from_dlpack(given)),
    }
    xbridge.register_backend("toylib", make_backend(**later))
    a = memory()
    toy = xbridge.to_backend(shown(a), "toylib")
    a[:] = -1
    assert xbridge.to_list(toy.data) == memory().tolist()
    with pytest.raises(xbridge.CopyError, match="toylib reads it later"):
        xbridge.to_backend(shown(a), "toylib", copy=False)


# -- refused -------------------------------------------------------------------------------------


OUTSIDE = "its memory would be outside of any device's"
LAYOUT, NO_DTYPE = "cupy does not support its strides or its alignment", ".*(has no|is not a numeric dtype).*"
BAD: dict[str, tuple[Exporter, str]] = {
    "a capsule on another device": (shown(memory(), announced=(2, 1)), ".* another device than cuda:1"),
    "a capsule of a version to come": (shown(memory(), version=(2, 0)), "it speaks DLPack 2"),
    "a capsule that was used": (shown(memory(), name=b"used_dltensor"), ".* used before.*"),
    "a capsule without memory": (shown(memory(), data=0), "its capsule has no memory"),
    "a capsule of too many axes": (shown(memory(), axes=65), "its capsule contradicts itself"),
    "a capsule without a shape": (shown(memory(), no_shape=True), "its capsule has no shape"),
    "a capsule below all memory": (shown(memory(), strides=(-(2**40),), data=4096), OUTSIDE),
    "an unaligned capsule": (shown(memory(), offset=1), LAYOUT),
    "a capsule of opaque items": (shown(memory(), code=3), NO_DTYPE),
    "a capsule of vectors": (shown(memory(), lanes=2), NO_DTYPE),
    "no capsule": (Exporter(__dlpack__=lambda **_: 3, __dlpack_device__=lambda: (2, 0)), ".* returned int.*"),
    "no device": (Exporter(__dlpack__=print, __dlpack_device__=lambda: (2,)), ".*failed with.*"),
}


@pytest.mark.parametrize(("x", "reason"), BAD.values(), ids=BAD)
def test_import_device_array__refuses_invalid_exports(x: Exporter, reason: str, cupy: ModuleType) -> None:
    """An export with impossible fields is rejected before any library reads it."""
    error = xbridge.DTypeError if reason is NO_DTYPE else xbridge.UnsupportedArrayError
    verbs: list[Callable[[Any], object]] = [
        lambda x: xbridge.to_backend(x, "cupy"),
        xbridge.to_numpy,
        xbridge.to_list,
        lambda x: xbridge.asarray([x, x]),
    ]
    for verb in verbs:
        with pytest.raises(error, match=f"^cannot read an Exporter( through DLPack)?: {reason}"):
            verb(x)


@pytest.mark.parametrize("where", [(2, 7), (2, -1), (4, 0), (0, 0), (99, 0)], ids=str)
def test_import_device_array__names_a_missing_device(where: tuple[int, int], cupy: ModuleType) -> None:
    """Memory on a device that is not present raises an error that names the device."""
    x = shown(memory(), device=where)
    for verb in (xbridge.to_numpy, lambda x: xbridge.to_backend(x, "cupy"), xbridge.to_list):
        with pytest.raises(xbridge.DeviceError, match=r"its memory is on (cuda:7|DLPack device type)"):
            verb(x)


def test_import_device_array__chains_exceptions_of_the_export(cupy: ModuleType) -> None:
    """An exception in the export becomes the cause, and the export is not tried again."""
    for error in (Exception("no"), TypeError("no"), RecursionError(), StopIteration(), BufferError("no")):
        calls: list[object] = []
        x = Exporter(__dlpack__=raising(error, calls), __dlpack_device__=lambda: (2, 0))
        expected = "^cannot read an Exporter: its export failed with "
        with pytest.raises(xbridge.UnsupportedArrayError, match=expected) as caught:
            xbridge.to_backend(x, "cupy")
        assert caught.value.__cause__ is error
        assert len(calls) == 1


def test_import_device_array__checks_the_imported_array(
    cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An importer that returns another dtype or shape than was exported raises an error."""
    backend = get_backend("cupy")
    monkeypatch.setattr(
        backend, "from_dlpack", lambda given: (given.__dlpack__(stream=1), cupy.asarray(np.ones(2)))[1]
    )
    with pytest.raises(
        xbridge.UnsupportedArrayError,
        match=r"an Exporter: it shows float64 of shape \(6,\) on cuda:0, and cupy sees float64 ",
    ):
        xbridge.to_backend(shown(memory()), "cupy")


def test_import_device_array__suggests_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a library that can import the memory, the error says what to install."""
    stub_cupy.install(monkeypatch, stub_cupy.module(0))
    if find_spec("torch"):
        monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    for call in (xbridge.to_numpy, xbridge.to_list, lambda x: xbridge.asarray([x])):
        with pytest.raises(xbridge.DeviceError, match=r"try pip install 'xbridge-array\[cupy\]'"):
            call(shown(memory()))
    xbridge.register_backend("toylib", make_backend(devices=lambda: (xbridge.Device("cpu"),)))
    with pytest.raises(xbridge.DeviceError, match="on cuda:0; try device='cpu'"):
        xbridge.to_backend(shown(memory()), "toylib")
    with pytest.raises(xbridge.DeviceError, match="its memory is on cuda:0"):
        xbridge.shares_memory(shown(memory()), shown(memory()))


def test_import_array__refuses_an_interface_of_a_device(cupy: ModuleType) -> None:
    """Memory on a GPU whose exporter has no DLPack is refused, for any target."""
    a = memory()
    x = Exporter(__cuda_array_interface__=a.__array_interface__, owner=a)
    for call in (xbridge.to_numpy, lambda x: xbridge.to_backend(x, "cupy"), xbridge.asarray):
        with pytest.raises(xbridge.DeviceError, match="on a CUDA device, and it has no DLPack"):
            call(x)
