"""Exporters that misbehave where it can be seen: an error of ours each time, never a crash, never wrong data.

What would bring the interpreter down if it were believed runs in a process of its own.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

import fresh
import numpy as np
import pytest
from exporters import Exporter, array_only, capsule, dlpack_only, interface_only
from names import stable_id

import xbridge
from xbridge.errors import type_of

if TYPE_CHECKING:
    from collections.abc import Callable

A = np.arange(6.0)
DLPACK: dict[str, Any] = {"__dlpack__": A.__dlpack__, "__dlpack_device__": A.__dlpack_device__}


# -- methods that raise --------------------------------------------------------------------------


class TheirError(Exception):
    """Of a library that derives from nothing more special, as polars and Pillow do."""


def raising(word: str, error: BaseException) -> Exporter:
    """An exporter whose method or property of that name raises."""

    def fail(*_: object, **__: object) -> None:
        raise error

    if word in ("__dlpack__", "__dlpack_device__"):
        return Exporter(**{**DLPACK, word: fail})
    if word == "__array__":
        return Exporter(__array__=fail)
    return Exporter(**{"__array__": lambda: A, word: property(fail)})


WORDS = ["__dlpack__", "__dlpack_device__", "__array_interface__", "__array__", "shape", "dtype"]
VERBS: list[Callable[[Any], Any]] = [
    xbridge.to_numpy,
    xbridge.to_list,
    lambda x: xbridge.asarray([x, x]),
    lambda x: xbridge.align(A, x),
]


@pytest.mark.parametrize("word", WORDS)
def test_import_array__whatever_an_exporter_raises_is_chained(word: str) -> None:
    """Whatever an exporter raises is chained."""
    for error in (TheirError("no"), Exception("no"), StopIteration(), RecursionError(), UnicodeError("no")):
        for verb in VERBS:
            with pytest.raises(
                xbridge.UnsupportedArrayError,
                match=r"cannot read an Exporter.*: (the|its) export failed with ",
            ) as caught:
                verb(raising(word, error))
            assert caught.value.__cause__ is error


@pytest.mark.parametrize("word", WORDS)
def test_import_array__what_does_not_speak_of_the_array_passes(word: str) -> None:
    """What does not speak of the array passes."""
    ours = xbridge.DeviceError("cannot a: b; try c")
    for error in (KeyboardInterrupt(), SystemExit(), GeneratorExit(), MemoryError(), UserWarning(), ours):
        for verb in VERBS:
            with pytest.raises(type(error)) as caught:
                verb(raising(word, error))
            assert caught.value is error or str(caught.value) == f"at xs[1]: {error}"


def forward(error: Exception, asked: list[object]) -> Callable[..., object]:
    """A proxy's method, which takes every keyword for an exporter that does not."""

    def export(**keywords: object) -> object:
        asked.append(keywords)
        if keywords:
            raise error
        return A.__dlpack__()

    return export


def forward_by_name(error: Exception, asked: list[object]) -> Callable[..., object]:
    """The same, by a proxy that knows the keyword itself."""
    export = forward(error, asked)
    return lambda *, max_version=None: export(**({"max_version": max_version} if max_version else {}))


@pytest.mark.parametrize(
    ("proxy", "error"),
    [
        (forward, TypeError("no such keyword")),
        (forward, NotImplementedError()),
        (forward_by_name, TypeError("got an unexpected keyword argument 'max_version'")),
        (forward_by_name, NotImplementedError()),
    ],
)
def test_to_numpy__proxy_of_an_exporter_that_knows_no_version_is_asked_without_one(
    proxy: Callable[..., Callable[..., object]], error: Exception
) -> None:
    """A proxy of an exporter that knows no version is asked without one."""
    asked: list[object] = []
    host = xbridge.to_numpy(Exporter(**{**DLPACK, "__dlpack__": proxy(error, asked)}))
    assert np.shares_memory(host, A)
    assert asked == [{"max_version": (1, 1)}, {}]


def test_to_numpy__exporter_that_must_copy_to_the_host_is_not_asked_for_less() -> None:
    """An exporter that must copy to the host is not asked for less."""
    asked = []

    def refuse(**keywords: object) -> None:
        asked.append(sorted(keywords))
        raise NotImplementedError

    x = Exporter(__dlpack__=refuse, __dlpack_device__=lambda: (2, 0))
    with pytest.raises(xbridge.DeviceError, match="its memory is on cuda:0"):
        xbridge.to_numpy(x)
    assert asked == [["dl_device", "max_version"]]


@pytest.mark.parametrize("word", ["__dlpack__", "__dlpack_device__"])
def test_to_numpy__exporter_that_refuses_dlpack_is_read_by_its_next_protocol(word: str) -> None:
    """An exporter that refuses DLPack is read by its next protocol."""

    def refuse(*_: object, **__: object) -> None:
        raise BufferError

    words = {**DLPACK, word: refuse}
    assert xbridge.to_list(Exporter(**words, __array__=lambda copy=None: A)) == A.tolist()
    shared = xbridge.to_numpy(Exporter(**words, __array_interface__=A.__array_interface__), copy=False)
    assert np.shares_memory(shared, A)
    with pytest.raises(xbridge.UnsupportedArrayError, match="export failed with BufferError"):
        xbridge.to_numpy(Exporter(**words))
    with pytest.raises(xbridge.DTypeError, match="its dtype is int64, and it exports float64"):
        xbridge.to_numpy(Exporter(**words, __array__=lambda copy=None: A, dtype="int64"))


# -- what contradicts the object's own words -----------------------------------------------------

EXPORTS: dict[str, dict[str, Any]] = {
    "DLPack": DLPACK,
    "the array interface": {"__array_interface__": A.__array_interface__},
    "__array__": {"__array__": lambda copy=None: A},
}
every_export = pytest.mark.parametrize("export", EXPORTS)


@every_export
@pytest.mark.parametrize(
    "words",
    [
        {"shape": None},
        {"shape": (5,)},
        {"shape": (2, 3)},
        {"shape": ()},
        {"shape": (6, 1)},
        {"__len__": lambda: 5},
        {"__len__": lambda: 0},
        {"dtype": np.dtype("f4")},
        {"dtype": np.float32},
        {"dtype": "int64"},
        {"dtype": "Int64[arrow]"},
        {"dtype": "somebodys.int64"},
        {"type": "bool"},
    ],
    ids=stable_id,
)
def test_import_array__exporter_contradicts_itself(export: str, words: dict[str, Any]) -> None:
    """An exporter that contradicts itself is refused."""
    for verb in VERBS:
        with pytest.raises(TypeError, match=r"cannot read an Exporter: its .*, and it exports ") as caught:
            verb(Exporter(**EXPORTS[export], **words))
        assert isinstance(
            caught.value, xbridge.DTypeError if "type" in str(words) else xbridge.UnsupportedArrayError
        )


@every_export
@pytest.mark.parametrize(
    "words",
    [
        {"shape": (6,), "dtype": np.dtype("f8"), "__len__": lambda: 6},
        {"dtype": np.dtype(">f8")},
        {"dtype": "Float64"},
        {"dtype": "somebodys.float64[special]"},
        {"dtype": "a secret"},
        {"type": lambda: "a method"},
        {"shape": (None,)},
        {"shape": [5]},
    ],
    ids=stable_id,
)
def test_to_list__dtype_in_words_of_another_library(export: str, words: dict[str, Any]) -> None:
    """A dtype in the words of another library is accepted."""
    assert xbridge.to_list(Exporter(**EXPORTS[export], **words)) == A.tolist()


@pytest.mark.parametrize(
    ("first", "second", "exported", "lost"),
    [
        ("int64", "float64", "float64", "int64"),
        ("Int64", "float64", "float64", "int64"),
        ("uint64", "int64", "float64", "uint64"),
        ("int32", "float32", "float32", "int32"),
        ("float64", "float32", "float32", "float64"),
        ("float64", "complex64", "complex64", "float64"),
        ("int64", "uint8", "uint8", "int64"),
        ("float64", "datetime", "float64", "datetime"),
        ("int32", "int32", "float64", "int32"),
        ("int8", "null", "float32", "int8"),
        ("int32", "float64", "float64", ""),
        ("uint32", "float64", "float64", ""),
        ("int16", "float32", "float32", ""),
        ("bool", "float64", "float64", ""),
        ("boolean", "int64", "int64", ""),
        ("uint32", "int64", "int64", ""),
        ("float", "double", "float64", ""),
        ("halffloat", "null", "float16", ""),
        ("int32", "complex64", "complex128", ""),
    ],
)
def test_to_numpy__export_of_a_table_has_every_value_of_every_column(
    first: str, second: str, exported: str, lost: str
) -> None:
    """A table is read if its export is of a dtype that has all values of the dtypes of its columns."""
    rows = np.ones((2, 2), exported)
    x = Exporter(__array__=lambda copy=None: rows, dtypes={"a": first, "b": second})
    if not lost:
        assert xbridge.to_numpy(x).tolist() == rows.tolist()
        return
    with pytest.raises(xbridge.DTypeError, match=f"its column '[ab]' is {lost}, and it exports {exported}"):
        xbridge.to_numpy(x)


def test_to_numpy__what_is_counted_as_missing_is_marked_in_the_export() -> None:
    """What is counted as missing is marked in the export."""
    sources = ((np.ones(3), 0), (np.ones(3, np.int64), 0), (np.array([1, np.nan, 1]), 1))
    for (values, marks), is_table in itertools.product(sources, (False, True)):
        words = {"dtypes": {"a": values.dtype}} if is_table else {}
        x = Exporter(__array__=lambda copy=None, values=values: values, null_count=1, **words)
        if marks:
            assert np.isnan(xbridge.to_numpy(x)).sum() == marks
        else:
            with pytest.raises(xbridge.DTypeError, match="1 of its values are missing, and it exports num"):
                xbridge.to_numpy(x)


GROWING = (np.ones(n) for n in itertools.count(1))


@pytest.mark.parametrize(
    "x",
    [
        Exporter(__array__=lambda copy=None: A.copy()),
        Exporter(__dlpack__=lambda **_: A.copy().__dlpack__(), __dlpack_device__=lambda: (1, 0)),
        Exporter(__array_interface__=property(lambda _: {**A.__array_interface__, "data": A.tobytes()})),
        Exporter(__array__=lambda copy=None: next(GROWING)),
    ],
    ids=["__array__", "DLPack", "the array interface", "growing"],
)
def test_to_numpy__exporter_of_other_memory_each_time_shares_none(x: object) -> None:
    """An exporter of other memory each time shares none."""
    with pytest.raises(xbridge.CopyError, match=f"of {type_of(x)}: it hands out a copy; try copy=None"):
        xbridge.to_numpy(x, copy=False)
    assert not xbridge.shares_memory(x, x)


# -- array interfaces that reach too far ---------------------------------------------------------

BEYOND = """
import numpy as np, xbridge
from exporters import Exporter

def attempt(**words):
    x = Exporter(__array_interface__={"version": 3, "typestr": "<f8", **words})
    for call in (xbridge.to_numpy, xbridge.to_list, lambda x: xbridge.asarray([x, x])):
        try:
            call(x)
        except xbridge.XBridgeError as error:
            print(str(error).partition("cannot ")[1] == "cannot ")
        else:
            print("believed", words)
"""


def test_import_array__nothing_is_read_beyond_the_buffer_that_an_interface_names() -> None:
    """Nothing is read beyond the buffer that an interface names."""
    code = f"""{BEYOND}
for words in (
    {{"shape": (10**6,)}},
    {{"shape": (2,)}},
    {{"shape": (1,), "offset": 1}},
    {{"shape": (1,), "offset": 10**9}},
    {{"shape": (1,), "offset": -8}},
    {{"shape": (1,), "offset": "8"}},
    {{"shape": (1,), "offset": 0.5}},
    {{"shape": (1,), "offset": 10**30}},
    {{"shape": (2,), "strides": (10**9,)}},
    {{"shape": (2,), "strides": (-8,)}},
    {{"shape": (2,), "strides": (8, 8)}},
):
    attempt(data=bytes(8), **words)
for address in (0, -8, -(10**30), 2**63, 2**64, 1.5, "8", None):
    attempt(data=(address, False), shape=(1,))
attempt(data=(2**40, False), shape=(3,), strides=(2**62,))
attempt(data=(2**40, False), shape=(2,), strides=(-(2**41),))
attempt(data=(8, False), shape=(2**62,))
attempt(data=(8, False), shape=(2,), typestr="|O")
attempt(data=b"12345678", shape=(1,), typestr="|O8")
attempt(data=b"12345678", shape=(1,), typestr="|V8", descr=[("a", "O")])
attempt(data=3, shape=(1,))
attempt(shape=(1,))
"""
    status, lines = fresh.forked(code)
    assert (status, set(lines), len(lines)) == (0, {"True"}, 3 * 27)


def test_to_numpy__buffer_that_an_interface_names_is_the_memory() -> None:
    """The buffer that an interface names is the memory."""
    raw = bytearray(np.arange(4.0).tobytes())
    words = {"version": 3, "typestr": "<f8", "shape": (2,), "strides": (-8,), "offset": 24}
    host = xbridge.to_numpy(Exporter(__array_interface__={**words, "data": raw}))
    assert host.tolist() == [3.0, 2.0]
    host[1] = 7
    assert np.frombuffer(raw)[2] == 7
    assert not xbridge.to_numpy(Exporter(__array_interface__={**words, "data": bytes(raw)})).flags.writeable


# -- memory that is elsewhere --------------------------------------------------------------------


def on_gpu(a: Any, asked: list[object] | None = None, **words: object) -> Exporter:
    """An exporter whose memory is on a GPU, and that copies to the host when it is asked to."""
    copied = capsule(a.copy())

    def export(*, max_version: object = None, dl_device: object = None) -> object:
        if asked is not None:
            asked.append(dl_device)
        if dl_device != (1, 0):
            message = "not without a GPU"
            raise BufferError(message)
        return copied.__dlpack__()  # type: ignore[attr-defined] # made at run time

    return Exporter(__dlpack__=export, __dlpack_device__=lambda: (2, 77), **words)


def test_to_numpy__memory_on_a_gpu_moves_to_the_host_if_the_call_names_the_host() -> None:
    """Memory on a GPU moves to the host if the call names the host."""
    asked: list[object] = []
    x = on_gpu(A, asked)
    host = xbridge.to_numpy(x)
    assert (host.tolist(), asked) == (A.tolist(), [(1, 0)])
    assert not np.shares_memory(host, A)
    assert host.flags.writeable
    assert xbridge.to_list(x) == A.tolist()
    assert xbridge.asarray([x, x]).tolist() == [A.tolist()] * 2
    with pytest.raises(xbridge.CopyError, match="try copy=None"):
        xbridge.to_numpy(x, copy=False)
    with pytest.raises(xbridge.DeviceError, match=r"on cuda:77(?!.*device=)"):  # an option that it lacks
        xbridge.shares_memory(x, x)


def test_explain__exporter_on_a_device_has_no_plan() -> None:
    """An exporter on a device is not copied to be explained, nor to share memory that is elsewhere."""
    asked: list[object] = []
    x = on_gpu(A, asked)
    calls: list[Callable[[], object]] = [
        lambda: xbridge.explain(x, "numpy"),
        lambda: xbridge.explain(x, "numpy", device="cpu"),
        lambda: xbridge.unsafe_share(x, "numpy"),
    ]
    for call in calls:
        with pytest.raises(xbridge.DeviceError, match=r"library is not registered$"):
            call()
    assert asked == []


def test_to_numpy__memory_on_a_gpu_comes_to_an_array_on_the_host() -> None:
    """An array on the host, beside it or as `like`, brings memory on a GPU to the host too."""
    torch = pytest.importorskip("torch")
    x, near = on_gpu(A), torch.ones(3)
    assert xbridge.asarray(x, like=near).tolist() == A.tolist()
    assert xbridge.align(near, x)[1].tolist() == A.tolist()


def test_to_backend__memory_on_a_gpu_does_not_come_to_the_host_unasked() -> None:
    """Memory on a GPU does not come to the host unasked."""
    pytest.importorskip("torch")
    asked: list[object] = []
    x = on_gpu(A, asked)
    calls: list[Callable[[], object]] = [
        lambda: xbridge.to_backend(x, "torch"),
        lambda: xbridge.asarray([x], backend="torch"),
    ]
    for call in calls:
        with pytest.raises(xbridge.DeviceError, match=r"on cuda:77, and .* not registered; try device='cpu'"):
            call()
    assert asked == []
    assert xbridge.to_backend(x, "torch", device="cpu").tolist() == A.tolist()
    assert xbridge.asarray([x], backend="torch", device="cpu").tolist() == [A.tolist()]


def test_import_array__refuses_an_interface_of_a_device() -> None:
    """Memory on a GPU whose exporter has no DLPack is refused."""
    x = Exporter(__cuda_array_interface__=A.__array_interface__)
    for call in (xbridge.to_numpy, xbridge.asarray):
        with pytest.raises(xbridge.DeviceError, match="on a CUDA device, and it has no DLPack"):
            call(x)


def refuse(*_: object, **options: object) -> object:
    """Export where it lies or not at all."""
    message = "no host"
    raise BufferError(message)


def older(stream: object = None) -> object:
    """Export as it was done before there was a choice of devices."""
    return A.__dlpack__()


@pytest.mark.parametrize(
    "export",
    [refuse, older, lambda **_: 1 / 0],
    ids=["it refuses", "it is older than the question", "it fails"],
)
def test_to_numpy__exporter_that_cannot_copy_to_the_host_is_refused(export: Callable[..., object]) -> None:
    """An exporter that cannot copy to the host is refused."""
    for device, place in ((2, "cuda:77"), (10, "rocm:77"), (14, "DLPack device type 14")):
        x = Exporter(__dlpack__=export, __dlpack_device__=lambda device=device: (device, 77))
        with pytest.raises(xbridge.DeviceError, match=f"{place}") as caught:
            xbridge.to_numpy(x)
        assert caught.value.__cause__ is not None


def test_to_list__protocols_are_trusted_in_order() -> None:
    """The protocols are trusted in order."""
    exports: list[dict[str, Any]] = [
        {"__dlpack__": (A + 1).__dlpack__, "__dlpack_device__": A.__dlpack_device__},
        {"__array_interface__": (two := A + 2).__array_interface__, "owner": two},
        {"__array__": lambda: A + 4},
    ]
    for first in range(3):
        words = {word: it for export in reversed(exports[first:]) for word, it in export.items()}
        assert xbridge.to_list(Exporter(**words))[0] == [1.0, 2.0, 4.0][first]


# -- numbers that are none -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["O", "U3", "S2", "M8[D]", "m8[s]", "V3", "i4,f4"])
def test_to_numpy__no_protocol_imports_items_that_are_not_numbers(dtype: str) -> None:
    """No protocol imports items that are not numbers."""
    a = np.zeros(2, dtype)
    exporters = [array_only(a), interface_only(a)]
    for x in exporters:
        for verb in VERBS:
            with pytest.raises(xbridge.DTypeError, match=r"it exports .*, which is not a numeric dtype"):
                verb(x)
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"^cannot read "):
        xbridge.to_numpy(dlpack_only(a))


class Unbound:
    """A proxy of nothing: it raises whatever it is asked."""

    def __getattribute__(self, name: str) -> Any:
        raise ReferenceError(name)


@pytest.mark.parametrize("make", [Unbound, lambda: weakref.proxy(set())])
def test_asarray__proxy_raises_or_names_another_class(
    make: Callable[[], Any],
) -> None:
    """A proxy that raises or names another class is refused by every verb."""
    x = make()
    calls: list[Callable[[], object]] = [
        lambda: xbridge.to_numpy(x),
        lambda: xbridge.asarray(x),
        lambda: xbridge.asarray([x, np.ones(2)]),
        lambda: xbridge.asarray([[np.ones(2)], x]),
        lambda: xbridge.align(np.ones(2), x),
        lambda: xbridge.shares_memory(np.ones(2), x),
        lambda: xbridge.explain(x, "numpy"),
    ]
    for call in calls:
        with pytest.raises(xbridge.XBridgeError, match="cannot "):
            call()
