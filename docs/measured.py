"""The tables of support.md: the results of conversions between all libraries.

A cell is a conversion. NumPy compares the memory of both arrays, which the two libraries show by their own
means. A library without arrays on the host is not measured. Its cells are the declarations of its backend, in
italics.
"""

from typing import Any, TypeAlias

import array_api_strict
import dask.array as da
import jax
import numpy as np
import torch
from declared import ACCELERATORS, Declared, expected
from numpy.lib.stride_tricks import as_strided

import xbridge
from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES
from xbridge._host.memory import native_dtype
from xbridge._registry.registry import get
from xbridge.backends import HOST

Table: TypeAlias = "list[list[str]]"
Array: TypeAlias = Any

PROPERTIES = ("readonly", "assumes_immutable", "autograd", "host_only")
NAMELESS = ("longdouble", "object", "str", "datetime64[s]")


def tables(backends: list[Declared]) -> dict[str, Table]:
    """Return every table by its name, the head first."""
    info = [[backend.name, *(str(getattr(backend, fact)) for fact in PROPERTIES)] for backend in backends]
    gaps = [
        [backend.name, feature, gap.status, gap.reason]
        for backend in backends
        for feature, gap in backend.gaps.items()
    ]
    return {
        "pairs": pairs(backends),
        "dtypes": dtypes(backends),
        "nearest": nearest(backends),
        "defaults": defaults(backends),
        "devices": devices(backends),
        "layouts": layouts(),
        "facts": [["backend", *PROPERTIES], *info],
        "gaps": [["backend", "feature", "status", "reason"], *gaps],
    }


# -- the memory of arrays ------------------------------------------------------------------------


def memory(x: Array) -> Array:
    """Return the memory of an array by the means of its library; of a Dask array, that of its only chunk."""
    name = xbridge.backend_of(x)
    if name == "torch":
        return torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage()).numpy()
    if name == "dask":
        chunks = [getattr(value, "value", value) for value in x.dask.values()]
        return chunks[0] if len(chunks) == 1 and isinstance(chunks[0], np.ndarray) else np.empty(0)
    return x._array if name == "array_api_strict" else np.asarray(x)  # noqa: SLF001 -- its only way


def conversion(x: Array, target: str, **options: Any) -> str:
    """Return the result of one conversion in words; nothing if there is no such array."""
    if x is None:
        return ""
    try:
        y = xbridge.to_backend(x, target, **options)
    except xbridge.XBridgeError as error:
        return f"refused: `{type(error).__name__}`"
    if y is x:
        return "itself"
    if not np.shares_memory(memory(x), memory(y)):
        return "copied"
    return "shared" if memory(y).flags.writeable else "shared, read-only"


# -- the tables ----------------------------------------------------------------------------------


def sources(backends: list[Declared]) -> dict[str, Array]:
    """Return an array in one piece of each library, and the read-only and tracked ones; None if not here."""
    host = np.arange(24, dtype="float32").reshape(4, 6)
    frozen = host.copy()
    frozen.flags.writeable = False
    made = {
        "numpy": host,
        "numpy, read-only": frozen,
        "torch": torch.arange(24.0).reshape(4, 6),
        "torch, requires grad": torch.ones(4, 6, requires_grad=True),
        "jax": jax.device_put(host.copy(), jax.local_devices(backend="cpu")[0]),
        "dask": da.from_array(host.copy(), chunks=-1),
        "array_api_strict": array_api_strict.asarray(host.copy()),
    }
    return made | {backend.name: None for backend in backends if backend.name not in made}


def measured(x: Array, target: str) -> str:
    """Return the result of a second conversion, which can take the fast path."""
    xbridge.to_backend(x, target)
    found = conversion(x, target)
    return "computed" if found == "copied" and xbridge.backend_of(x) == "dask" else found


def pairs(backends: list[Declared]) -> Table:
    """Return the table of conversions from every library to every other."""
    by_name = {backend.name: backend for backend in backends}
    rows = []
    for row, x in sources(backends).items():
        source = by_name[row.partition(",")[0]]
        expect = [f"*{expected(source, target, guarded=',' in row)}*" for target in backends]
        here = [source.is_measured and target.is_measured for target in backends]
        cells = [
            measured(x, backend.name) if so else cell
            for backend, so, cell in zip(backends, here, expect, strict=True)
        ]
        rows.append([row, *cells])
    return [["from", *(f"to {backend.name}" for backend in backends)], *rows]


def dtypes(backends: list[Declared]) -> Table:
    """Return the table of the dtypes that each library keeps bit by bit."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for word in (*DTYPES, *NAMELESS):
        alike.setdefault(tuple(has(backend, word) for backend in backends), []).append(f"`{word}`")
    rows = [[", ".join(words), *cells] for cells, words in alike.items()]
    return [["dtype", *(backend.name for backend in backends)], *rows]


def has(backend: Declared, word: str) -> str:
    """Return if a library has a dtype, with the condition."""
    if not backend.is_measured:
        return "*not measured*"
    if goes(backend.name, word):
        return "yes"
    if backend.name == "jax":
        with jax.enable_x64(True):  # noqa: FBT003 -- JAX's signature
            return "with x64" if goes(backend.name, word) else "no"
    return "no"


def goes(name: str, word: str) -> bool:
    """Return True if a NumPy array keeps its dtype and its bits in a library and back."""
    x = np.arange(6).astype(native_dtype(word) if word in DTYPES else word)
    try:
        y = xbridge.to_backend(x, name, copy=None if name == HOST else True)
        back = xbridge.to_numpy(y)
    except xbridge.DTypeError:
        return False
    assert back.dtype == x.dtype, (name, word)
    assert back.tobytes() == x.tobytes(), (name, word)
    return word in DTYPES or name == HOST


def nearest(backends: list[Declared]) -> Table:
    """Return the table of the results of `dtype="nearest"` for dtypes that some library lacks."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for word in (*DTYPES, "longdouble", "clongdouble"):
        cells = tuple(
            becomes(backend, word) if backend.is_measured else "*not measured*" for backend in backends
        )
        if any(cell.startswith("`") for cell in cells):
            alike.setdefault(cells, []).append(f"`{word}`")
    rows = [[", ".join(words), *cells] for cells, words in alike.items()]
    return [["dtype", *(backend.name for backend in backends)], *rows]


def becomes(backend: Declared, word: str) -> str:
    """Return the nearest dtype that a library has, if it is another one."""
    y = xbridge.to_backend(np.ones(2, native_dtype(word)), backend.name, dtype="nearest")
    found = xbridge.dtype_of(y)
    return "stays" if found == word else f"`{found}`"


def defaults(backends: list[Declared]) -> Table:
    """Return the table of the dtypes that `dtype="default"` narrows."""
    rows = []
    for word in ("int64", "uint64", "float64", "complex128"):
        x = np.ones(2, word)
        there = [
            xbridge.to_backend(x, backend.name, dtype="default") if backend.is_measured else x
            for backend in backends
        ]
        cells = [str(y.dtype).rpartition(".")[2] for y in there]
        rows.append([f"`{word}`", *("stays" if cell == word else f"`{cell}`" for cell in cells)])
    return [["dtype", *(backend.name for backend in backends)], *rows]


def devices(backends: list[Declared]) -> Table:
    """Return the table of the devices of each library."""
    kinds = dict.fromkeys(kind for backend in backends for kind in ACCELERATORS.get(backend.name, ()))
    strict = [device for device in get("array_api_strict").devices() if device != CPU]
    places = ["cpu", *kinds, *strict]
    return [
        ["backend", *places],
        *([backend.name, *(has_device(backend, place) for place in places)] for backend in backends),
    ]


def has_device(backend: Declared, place: str) -> str:
    """Return if a library has arrays on a device; its declaration, if this machine lacks the device."""
    if place in ACCELERATORS.get(backend.name, ()):
        return "*yes*"
    if not backend.is_measured:
        return "*no*"
    try:
        y = xbridge.to_backend(np.ones(2, "float32"), backend.name, device=place)
    except xbridge.DeviceError:
        return "no"
    assert xbridge.device_of(y) == place
    return "yes"


def layouts() -> Table:
    """Return the table of conversions of arrays by their memory layout."""
    host = np.arange(24, dtype="float32").reshape(4, 6)
    frozen = host[:]
    frozen.flags.writeable = False
    tensor, leaf = torch.arange(24.0).reshape(4, 6), torch.ones(4, requires_grad=True)
    samples: dict[str, Any] = {
        "contiguous": (host, tensor),
        "0-d": (np.zeros(()), torch.zeros(())),
        "transposed": (host.T, tensor.T),
        "a slice that begins later": (host[1:], tensor[1:]),
        "every second element": (host[:, ::2], tensor[:, ::2]),
        "channels last": (None, torch.ones(1, 2, 3, 3).to(memory_format=torch.channels_last)),
        "reversed": (host[::-1], None),
        "with strides that are not a multiple of the item size": (np.zeros(4, "f4,i1")["f0"], None),
        "unaligned": (np.frombuffer(bytearray(17), "float32", offset=1), None),
        "in non-native byte order": (host.astype(host.dtype.newbyteorder()), None),
        "read-only": (frozen, None),
        "one element repeated": (np.broadcast_to(host[0, :1], 3), tensor[0, :1].expand(3)),
        "overlapping windows": (as_strided(host, (3, 2), (4, 4)), tensor.flatten()[:4].unfold(0, 2, 1)),
        "a leaf that requires grad": (None, leaf),
        "a result with a graph": (None, leaf * 2),
        "with a pending conjugation": (None, torch.ones(3, dtype=torch.complex64).conj()),
    }
    rows = [
        [name, *map(conversion, (array, array, tensor), ("torch", "array_api_strict", "numpy"))]
        for name, (array, tensor) in samples.items()
    ]
    return [["array", "NumPy to torch", "NumPy to array_api_strict", "torch to NumPy"], *rows]
