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


def interface(a: Any, **changes: Any) -> Exporter:
    """An exporter of a CUDA array interface."""
    words = {"version": 3, "typestr": a.dtype.str, "shape": a.shape, "strides": a.strides, "stream": None}
    said = {**words, "data": (a.__array_interface__["data"][0], False), **changes}
    return Exporter(__cuda_array_interface__=said, owner=a)


EXPORTS: dict[str, Callable[..., Exporter]] = {"DLPack": shown, "the interface": interface}
each_export = pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)


# -- let in --------------------------------------------------------------------------------------


@each_export
def test_import_device_array__shares_writable_memory(
    export: Callable[..., Exporter], cupy: ModuleType
) -> None:
    """Writable device memory is shared with a library that can import it."""
    a = memory()
    for options in ({}, {"copy": False}, {"device": "cuda:0"}, {"device": "gpu"}):
        x = xbridge.to_backend(export(a), "cupy", **options)
        assert type(x) is cupy.ndarray
        a[0] += 1
        assert xbridge.to_list(x) == a.tolist()
        x[1:2] = xbridge.to_backend(np.array([9.0 + a[1]]), "cupy")
        assert xbridge.to_list(x) == a.tolist()
        assert xbridge.shares_memory(export(a), x)


@each_export
def test_import_device_array__copies_if_asked(export: Callable[..., Exporter], cupy: ModuleType) -> None:
    """A call that asks for a copy, a cast or the host gets independent memory."""
    a = memory()
    made = [
        xbridge.to_backend(export(a), "cupy", copy=True),
        xbridge.to_backend(export(a), "cupy", device="cuda:1"),
        xbridge.to_backend(export(a), "cupy", dtype="float32"),
        xbridge.to_numpy(export(a)),
        xbridge.asarray(export(a)),
        xbridge.asarray([export(a), export(a)])[1],
        xbridge.asarray([export(a), export(a)], backend="cupy")[1],
        xbridge.align(np.ones(2), export(a))[1],
    ]
    a[:] = -1
    for x in made:
        assert xbridge.to_list(x) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert made[3].flags.writeable
    assert xbridge.to_list(export(memory())) == memory().tolist()


@each_export
def test_import_device_array__keeps_layout_and_dtype(
    export: Callable[..., Exporter], cupy: ModuleType
) -> None:
    """Strides, shapes and dtypes of an export arrive unchanged."""
    whole = np.arange(24.0).reshape(2, 3, 4)
    views = [whole, whole.T, whole[:, ::-1], whole[..., ::2], whole[:0], whole[0, 0, 0, ...]]
    views += [whole.astype(dtype) for dtype in ("?", "i1", "u2", "f2", "f4", "c8", "c16", "u8")]
    for view in views:
        x = xbridge.to_backend(export(view), "cupy")
        assert (x.dtype, x.shape) == (view.dtype, view.shape)
        assert np.array_equal(xbridge.to_numpy(x), view)


@pytest.mark.parametrize(
    "export",
    [
        lambda a: shown(a, flags=1),
        lambda a: shown(a, stale=True),
        lambda a: interface(a, data=(a.__array_interface__["data"][0], True)),
        lambda a: shown(np.broadcast_to(a[:1], (6,)) if a.size else a),
    ],
    ids=["read-only", "before there were versions", "a read-only interface", "it repeats memory"],
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


@pytest.mark.parametrize(
    "words",
    [
        {"shape": [6], "strides": [8]},
        {"strides": None},
        {"stream": 1},
        {"stream": 2},
        {"shape": (0,), "data": (0, False)},
        {"mask": None},
    ],
    ids=["lists", "no strides", "the first stream", "another stream", "empty at no address", "no mask"],
)
def test_import_device_array__accepts_optional_fields(words: dict[str, Any], cupy: ModuleType) -> None:
    """`__cuda_array_interface__` may leave out fields or use any form the protocol allows."""
    x = xbridge.to_backend(interface(memory(), **words), "cupy")
    assert xbridge.to_list(x) == memory()[: words.get("shape", [6])[0]].tolist()


@pytest.mark.parametrize("address", [1, 2**64 - 1])
def test_import_device_array__passes_a_writable_interface(
    address: int, cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The importer gets a validated copy of the interface that is marked as writable."""
    backend: Any = get_backend("cupy")
    shown: list[dict[str, Any]] = []
    asked: list[object] = []

    def unsupported(dtype: str, device: xbridge.Device) -> None:
        asked.append((dtype, device))

    def accepts(info: Any, layout: Any) -> bool:
        asked.append((info.dtype, info.device, info.shape, layout.shape))
        return True

    def look(given: Any) -> None:
        shown.append(given.__cuda_array_interface__)
        raise TheirError

    monkeypatch.setattr(backend, "from_dlpack", look)
    monkeypatch.setattr(backend, "unsupported_dtype", unsupported)
    monkeypatch.setattr(backend, "accepts_layout", accepts)
    words = {"typestr": "|u1", "shape": [1], "strides": [1], "data": (address, True)}
    with pytest.raises(xbridge.UnsupportedArrayError, match="an Exporter: its export failed with TheirError"):
        xbridge.to_backend(interface(memory(), **words), "cupy")
    assert shown == [
        {"version": 3, "typestr": "|u1", "shape": (1,), "strides": (1,), "stream": None}
        | {"data": (address, False)}
    ]
    assert asked == [("uint8", "cuda"), ("uint8", "cuda", (1,), (1,))]


@pytest.mark.parametrize(("version", "passed"), [(None, (1, 0)), ((1, 1), (1, 1))])
def test_import_device_array__passes_the_importers_dlpack_version(
    version: object, passed: object, cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter is asked for the DLPack version that the importer supports."""
    asked: list[object] = []

    def export(*, stream: int, max_version: object = None) -> object:
        asked.append(max_version)
        raise TheirError

    words = {} if version is None else {"max_version": version}
    monkeypatch.setattr(get_backend("cupy"), "from_dlpack", lambda given: given.__dlpack__(stream=1, **words))
    with pytest.raises(xbridge.UnsupportedArrayError, match="TheirError"):
        xbridge.to_backend(Exporter(__dlpack__=export, __dlpack_device__=lambda: (2, 0)), "cupy")
    assert asked == [passed]


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


def test_to_list__asks_an_exporter_for_host_memory(cupy: ModuleType) -> None:
    """An exporter that can copy to the host is asked to do so."""

    def export(*, max_version: object, dl_device: object) -> object:
        return on_host.__dlpack__()

    on_host: Any = capsule(memory() + 1)
    x = Exporter(__dlpack__=export, __dlpack_device__=lambda: (2, 0))
    assert xbridge.to_list(x) == (memory() + 1).tolist()


def test_import_device_array__reports_unsupported_managed_memory(cupy: ModuleType) -> None:
    """Managed memory of a type that the importer does not know is rejected."""
    x = shown(memory(), device=(13, 0))
    with pytest.raises(xbridge.UnsupportedArrayError, match="Unsupported array type: 13"):
        xbridge.to_backend(x, "cupy")


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


def test_shares_memory__uses_backends_with_imports_dlpack(
    cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Device memory is compared by any backend that sets `imports_dlpack`, and by no other."""
    monkeypatch.setattr("xbridge._engine.device_import.INDEXED", ())
    backend: Any = get_backend("cupy")
    importing: dict[str, Any] = {
        "array_info": lambda x: backend.array_info(x.data),
        "memory_layout": lambda x: backend.memory_layout(x.data),
        "devices": backend.devices,
        "unsupported_dtype": backend.unsupported_dtype,
        "accepts_layout": backend.accepts_layout,
        "from_dlpack": lambda given: Toy(backend.from_dlpack(given)),
    }
    a = memory()
    for flag in (False, True, False):
        xbridge.register_backend("toylib", make_backend(imports_dlpack=flag, **importing), replace=True)
        if flag:
            assert xbridge.shares_memory(shown(a), shown(a))
        else:
            with pytest.raises(xbridge.DeviceError, match="on cuda:0"):
                xbridge.shares_memory(shown(a), shown(a))


def test_to_backend__target_imports_without_imports_dlpack(
    cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target without the flag still imports memory that is converted to it."""
    monkeypatch.setattr("xbridge._engine.device_import.INDEXED", ())
    backend: Any = get_backend("cupy")
    importing: dict[str, Any] = {
        "assumes_immutable": False,
        "array_info": lambda x: backend.array_info(x.data),
        "memory_layout": lambda x: backend.memory_layout(x.data),
        "devices": backend.devices,
        "resolve_device": backend.resolve_device,
        "unsupported_dtype": backend.unsupported_dtype,
        "unsupported": lambda x, *, leaving: None,
        "accepts_layout": backend.accepts_layout,
        "from_dlpack": lambda given: Toy(backend.from_dlpack(given)),
    }
    xbridge.register_backend("toylib", make_backend(imports_dlpack=False, **importing))
    a = memory()
    made = [
        xbridge.to_backend(shown(a), "toylib"),
        xbridge.to_backend(shown(a), "toylib", copy=False),
        xbridge.unsafe_share(shown(a), "toylib"),
    ]
    assert [x.data.data.ptr for x in made] == [a.ctypes.data] * 3
    for copy in (None, False):
        plan = xbridge.explain(shown(a), "toylib", copy=copy)
        assert (plan.error, plan.source.backend) == (None, "toylib")


# -- refused -------------------------------------------------------------------------------------


def refusals(x: object, error: type[xbridge.XBridgeError], reason: str) -> None:
    do = "filling" if "mask" in reason else "casting" if error is xbridge.DTypeError else "converting"
    hint = rf"({do} it in its own library first|numpy\.asarray\(x\))"
    verbs: list[Callable[[Any], object]] = [
        lambda x: xbridge.to_backend(x, "cupy"),
        xbridge.to_numpy,
        xbridge.to_list,
        lambda x: xbridge.asarray([x, x]),
    ]
    for verb in verbs:
        with pytest.raises(error, match=f"^cannot read an Exporter( through DLPack)?: {reason}; try {hint}$"):
            verb(x)


BAD_CAPSULES: dict[str, tuple[dict[str, Any], str]] = {
    "its capsule is on another device than was said": (
        {"announced": (2, 1)},
        "its capsule is on another device than cuda:1",
    ),
    "on the host": ({"device": (1, 0), "announced": (2, 0)}, "its capsule is on another device than cuda:0"),
    "of a version to come": ({"version": (2, 0)}, "it speaks DLPack 2"),
    "of another name": ({"name": b"used_dltensor"}, "__dlpack__ returned a capsule that was used before, .*"),
    "without memory": ({"data": 0}, "its capsule has no memory"),
    "with a negative length": ({"shape": (-6,)}, "its capsule has no memory"),
    "of too many axes": ({"axes": 65}, "its capsule contradicts itself"),
    "of less than no axes": ({"axes": -1}, "its capsule contradicts itself"),
    "without a shape": ({"no_shape": True}, "its capsule has no shape"),
    "below all memory": (
        {"strides": (-(2**40),), "data": 4096},
        "its memory would be outside of any device's",
    ),
    "above all memory": ({"strides": (2**60,)}, "its memory would be outside of any device's"),
    "unaligned": ({"offset": 1}, "cupy does not support its strides or its alignment"),
}


@pytest.mark.parametrize(("words", "reason"), BAD_CAPSULES.values(), ids=BAD_CAPSULES)
def test_import_device_array__refuses_invalid_capsules(
    words: dict[str, Any], reason: str, cupy: ModuleType
) -> None:
    """A capsule with impossible fields is rejected before any library reads it."""
    refusals(shown(memory(), **words), xbridge.UnsupportedArrayError, reason)


@pytest.mark.parametrize(
    "words",
    [{"code": 3}, {"bits": 128}, {"lanes": 2}, {"code": 10, "bits": 8}, {"code": 17, "bits": 4}],
    ids=["opaque", "too wide", "vectors", "float8", "less than a byte"],
)
def test_import_device_array__refuses_unknown_capsule_dtypes(words: dict[str, Any], cupy: ModuleType) -> None:
    """A capsule with a dtype that has no name raises `DTypeError`."""
    refusals(shown(memory(), **words), xbridge.DTypeError, ".* has no .*")


BAD_INTERFACES: dict[str, tuple[dict[str, Any], str]] = {
    "without memory": ({"data": (0, False)}, "its interface names no memory"),
    "at a negative address": ({"data": (-8, False)}, "its interface names no memory"),
    "at no address": ({"data": (None, False)}, "its interface is not of the form that it announces"),
    "at an address in words": (
        {"data": ("4096", False)},
        "its interface is not of the form that it announces",
    ),
    "of data that are no pair": ({"data": None}, r"its export failed with TypeError\(.*\)"),
    "that does not say who writes": (
        {"data": (4096, None)},
        "its interface is not of the form that it announces",
    ),
    "of no shape": ({"shape": None}, r"its export failed with TypeError\(.*\)"),
    "of a shape in words": ({"shape": ("6",)}, "its interface is not of the form that it announces"),
    "of a fractional shape": ({"shape": (1.5,)}, "its interface is not of the form that it announces"),
    "of a boolean shape": ({"shape": (True,)}, "its interface is not of the form that it announces"),
    "of a negative length": ({"shape": (-6,)}, "its interface names no memory"),
    "of a shape that fits nowhere": (
        {"shape": (2, 2**62, 2**62), "strides": None},
        "its memory would be outside of any device's",
    ),
    "of other strides than axes": ({"strides": (8, 8)}, "its interface is not of the form that it announces"),
    "with strides in words": ({"strides": ("8",)}, "its interface is not of the form that it announces"),
    "beyond all memory": ({"strides": (2**62,)}, "its memory would be outside of any device's"),
    "below all memory": (
        {"strides": (-(2**40),), "data": (4096, False)},
        "its memory would be outside of any device's",
    ),
    "from address zero on": (
        {"data": (8, False), "strides": (-8,), "shape": (2,)},
        "its memory would be outside of any device's",
    ),
    "without memory for its one item": ({"data": (0, False), "shape": (1,)}, "its interface names no memory"),
    "unaligned": ({"data": (4097, False)}, "cupy does not support its strides or its alignment"),
    "of a part of an item": ({"strides": (12,)}, "cupy does not support its strides or its alignment"),
    "with a mask": ({"mask": interface(np.ones(6, bool))}, "its mask would be lost"),
    "of foreign bytes": ({"typestr": ">f8"}, "its bytes are in foreign order"),
    "of no type": ({"typestr": "what"}, r"its export failed with TypeError\(.*\)"),
    "on stream zero": ({"stream": 0}, "its stream 0 is not valid"),
    "on a stream in words": ({"stream": "1"}, "its stream '1' is not valid"),
}


@pytest.mark.parametrize(("words", "reason"), BAD_INTERFACES.values(), ids=BAD_INTERFACES)
def test_import_device_array__refuses_invalid_interfaces(
    words: dict[str, Any], reason: str, cupy: ModuleType
) -> None:
    """An interface with impossible fields is rejected before any library reads it."""
    refusals(interface(memory(), **words), xbridge.UnsupportedArrayError, reason)


@pytest.mark.parametrize("said", [(), 3, "a", {}, {"shape": (1,)}, [("a", 1)]], ids=str)
def test_import_device_array__refuses_malformed_interfaces(said: object, cupy: ModuleType) -> None:
    """An interface that is not a dict with the required keys is rejected."""
    refusals(
        Exporter(__cuda_array_interface__=said), xbridge.UnsupportedArrayError, "its export failed with .*"
    )


@pytest.mark.parametrize("typestr", ["|O", "|V8", "<U2", "<M8[s]", "|S8"])
def test_import_device_array__refuses_non_numeric_typestr(typestr: str, cupy: ModuleType) -> None:
    """An interface of objects, text or dates raises `DTypeError`."""
    refusals(interface(memory(), typestr=typestr), xbridge.DTypeError, ".* is not a numeric dtype")


@pytest.mark.parametrize("result", [None, 3, "capsule", memory()], ids=repr)
def test_import_device_array__refuses_results_that_are_not_capsules(result: object, cupy: ModuleType) -> None:
    """`__dlpack__` must return a capsule."""
    x = Exporter(__dlpack__=lambda **_: result, __dlpack_device__=lambda: (2, 0))
    with pytest.raises(xbridge.UnsupportedArrayError, match=f"__dlpack__ returned {type(result).__name__}"):
        xbridge.to_backend(x, "cupy")


@pytest.mark.parametrize("where", [None, (), (2,), (2, 0, 0), ("cuda", 0), (2, None)], ids=repr)
def test_import_device_array__refuses_invalid_dlpack_device(where: object, cupy: ModuleType) -> None:
    """`__dlpack_device__` must return two integers."""
    x = Exporter(__dlpack__=memory().__dlpack__, __dlpack_device__=lambda: where)
    refusals(x, xbridge.UnsupportedArrayError, "the export failed with .*")


@pytest.mark.parametrize("where", [(2, 7), (2, -1), (4, 0), (0, 0), (99, 0)], ids=str)
def test_import_device_array__names_a_missing_device(where: tuple[int, int], cupy: ModuleType) -> None:
    """Memory on a device that is not present raises an error that names the device."""
    x = shown(memory(), device=where)
    for verb in (xbridge.to_numpy, lambda x: xbridge.to_backend(x, "cupy"), xbridge.to_list):
        with pytest.raises(xbridge.DeviceError, match=r"its memory is on (cuda:7|DLPack device type)"):
            verb(x)


class TheirError(Exception):
    """Of a library that derives from nothing more special."""


def test_import_device_array__chains_exceptions_of_the_export(cupy: ModuleType) -> None:
    """An exception in the export becomes the cause, and the export is not tried again."""
    for error in (TheirError("no"), TypeError("no"), RecursionError(), StopIteration(), BufferError("no")):
        calls: list[object] = []
        x = Exporter(__dlpack__=raising(error, calls), __dlpack_device__=lambda: (2, 0))
        with pytest.raises(
            xbridge.UnsupportedArrayError, match=r"^cannot read an Exporter: its export failed with .*; try "
        ) as caught:
            xbridge.to_backend(x, "cupy")
        assert caught.value.__cause__ is error
        assert len(calls) == 1


def test_import_device_array__chains_exceptions_of_properties(cupy: ModuleType) -> None:
    """A property of an exporter that raises is reported with its exception as the cause."""

    def fail(_: object) -> None:
        raise TheirError

    for word in ("shape", "dtype"):
        for words in (
            {"__cuda_array_interface__": interface(memory()).__cuda_array_interface__},  # type: ignore[attr-defined]
            {"__dlpack__": shown(memory()).__dlpack__, "__dlpack_device__": lambda: (2, 0)},  # type: ignore[attr-defined]
        ):
            with pytest.raises(xbridge.UnsupportedArrayError, match="TheirError"):
                xbridge.to_backend(Exporter(**words, **{word: property(fail)}), "cupy")
    with pytest.raises(xbridge.UnsupportedArrayError, match="TheirError"):
        xbridge.to_backend(Exporter(__cuda_array_interface__=property(fail)), "cupy")


def test_import_device_array__refuses_contradictory_exporters(cupy: ModuleType) -> None:
    """An exporter whose attributes disagree with what it exports raises `TypeError`."""
    a = memory()
    for words in ({"shape": (5,)}, {"__len__": lambda: 7}, {"dtype": np.dtype("f4")}, {"dtype": "int64"}):
        for x in (
            Exporter(__cuda_array_interface__=interface(a).__cuda_array_interface__, owner=a, **words),  # type: ignore[attr-defined]
            Exporter(**{**vars(type(shown(a))), **words}),
        ):
            with pytest.raises(TypeError, match=r"its .*, and it exports (float64|\(6,\)); try "):
                xbridge.to_backend(x, "cupy")


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


def test_import_device_array__refuses_unsupported_strides(
    cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export is rejected before the import if the importer lacks its strides."""
    backend = get_backend("cupy")
    monkeypatch.setattr(backend, "accepts_layout", lambda info, layout: min(layout.strides) >= 0)
    for export in EXPORTS.values():
        with pytest.raises(
            xbridge.UnsupportedArrayError, match="cannot read an Exporter: cupy does not support its strides"
        ):
            xbridge.to_backend(export(memory()[::-1]), "cupy")


def test_import_device_array__suggests_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a library that can import the memory, the error says what to install."""
    stub_cupy.install(monkeypatch, stub_cupy.module(0))
    if find_spec("torch"):
        monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    for export in EXPORTS.values():
        for call in (xbridge.to_numpy, xbridge.to_list, lambda x: xbridge.asarray([x])):
            with pytest.raises(
                xbridge.DeviceError, match=r"pip install 'xbridge-array\[cupy\]' where that device is"
            ):
                call(export(memory()))
    xbridge.register_backend("toylib", make_backend(devices=lambda: (xbridge.Device("cpu"),)))
    with pytest.raises(xbridge.DeviceError, match="on cuda:0; try device='cpu', or pip install"):
        xbridge.to_backend(shown(memory()), "toylib")
    with pytest.raises(xbridge.DeviceError, match="or pip install"):
        xbridge.shares_memory(shown(memory()), shown(memory()))


def test_import_device_array__suggests_one_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error suggests a single library to install."""
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    monkeypatch.setattr("xbridge._engine.device_import.INDEXED", ("torch", "cupy", "jax"))
    for missing, hint in (({"cupy"}, "cupy"), ({"torch", "cupy", "jax"}, "torch")):
        monkeypatch.setattr(
            "xbridge._engine.device_import.is_available",
            lambda name, missing=missing: name == "numpy" or name in {"torch", "jax"} - missing,
        )
        monkeypatch.setattr("xbridge._engine.device_import.known_backends", lambda: ())
        with pytest.raises(xbridge.DeviceError) as caught:
            xbridge.shares_memory(shown(memory(), device=(2, 7)), memory())
        assert caught.value.hint.endswith(f"or pip install 'xbridge-array[{hint}]' where that device is")
        assert caught.value.hint.count("pip install") == 1


def test_to_list__cuda_array_interface_says_that_memory_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA array interface says that memory is elsewhere."""
    monkeypatch.setattr("xbridge._engine.device_import.INDEXED", ())  # as where there is no GPU
    a = np.arange(6.0)
    interface = {"version": 3, "typestr": "<f8", "shape": (6,), "data": (1 << 40, False)}
    verbs: list[Any] = [
        xbridge.to_numpy,
        xbridge.to_list,
        lambda x: xbridge.asarray([x, x]),
        lambda x: xbridge.align(a, x),
    ]
    for words in ({}, {"__array__": lambda: a}):
        x = Exporter(__cuda_array_interface__=interface, **words)
        for verb in verbs:
            with pytest.raises(
                xbridge.DeviceError,
                match="an Exporter: its memory is on a CUDA device; try moving it to the cpu first",
            ):
                verb(x)
    dlpack: dict[str, Any] = {"__dlpack__": a.__dlpack__, "__dlpack_device__": a.__dlpack_device__}
    assert xbridge.to_list(Exporter(__cuda_array_interface__=interface, **dlpack)) == a.tolist()
