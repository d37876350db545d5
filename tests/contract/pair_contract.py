"""What must become of a conversion, known before it is made: docs/contract.md once more, as a model.

It plans no steps and asks no backend for a verdict. What a library is stands here as a table, so that a
backend that gets its own facts wrong is told by this one. Of a library that is not in the table (a plugin)
the facts that it declares are believed.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from inside import DTYPES, category, exact_integers, get_backend, is_inexact, native_dtype

from xbridge import Device
from xbridge.backends import HOST
from xbridge.errors import CopyError, DeviceError, DTypeError, GradientError, OptionError, ValueLossError
from xbridge.testing.conformance._cases import byte_addresses, is_aligned, memory_of, plain_array, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge.errors import XBridgeError
    from xbridge.protocol import Array, HostArray, MemoryLayout
    from xbridge.testing.samples import Sample

CPU = Device("cpu")


class Library(NamedTuple):
    """What the contract depends on."""

    host_only: bool = False
    readonly: bool = False
    """It has read-only arrays."""
    unchanging: bool = False
    """It takes memory for something that never changes."""
    gradients: bool = False


LIBRARIES = {
    "numpy": Library(host_only=True, readonly=True),
    "numpy_readonly": Library(host_only=True, readonly=True),
    "torch": Library(gradients=True),
    "jax": Library(readonly=True, unchanging=True),
    "dask": Library(host_only=True, readonly=True, unchanging=True),
    "array_api_strict": Library(readonly=True),
}
WIDE = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


class Asked(NamedTuple):
    """A call: `to_backend`, or `asarray` where `requires_grad` is among the options."""

    source: str
    target: str
    sample: Sample
    options: dict[str, Any]

    @property
    def leaves(self) -> bool:
        """Whether the array goes to another library."""
        return self.source != self.target

    @property
    def given(self) -> str:
        """The dtype that it has."""
        return self.sample.values.dtype.name

    @property
    def detaches(self) -> bool:
        """Whether history was asked to end."""
        return self.options.get("grad") == "detach" or self.options.get("requires_grad") is False

    @property
    def start(self) -> str:
        """Where it is."""
        return str(get_backend(self.source).array_info(self.sample.array).device)

    @property
    def device(self) -> str:
        """Where it is to be."""
        return self.options.get("device") or ("cpu" if library(self.target).host_only else self.start)

    @property
    def dtype(self) -> str:
        """What it is to be of: `default` is no wider than the default of its kind."""
        asked = self.options.get("dtype") or self.given
        if asked == "nearest":
            device = self.device
            return nearest_of(self.given, [word for word in DTYPES if has(self.target, word, device)])
        if asked != "default":
            return str(asked)
        narrow = WIDE.get(self.given)
        return narrow if narrow and _is_narrowed(self.target, self.given, self.device) else self.given


def library(name: str) -> Library:
    """What a library is."""
    backend = get_backend(name)
    return LIBRARIES.get(name) or Library(
        backend.host_only, backend.readonly, backend.assumes_immutable, backend.autograd
    )


def has(name: str, dtype: str, device: str = "cpu") -> bool:
    """Whether a library has a dtype on a device."""
    if name == "jax":
        import jax

        if DTYPES[dtype].bits == 6:  # JAX has names for these, and XLA knows no arrays of them
            return False
        return hasattr(jax.numpy, dtype) and (dtype not in WIDE or jax.config.jax_enable_x64)  # type: ignore[attr-defined] # it comes while JAX is imported
    if name == "torch":
        import torch

        return hasattr(torch, dtype) and not DTYPES[dtype].is_packed  # of which it has names alone
    if name == "array_api_strict":
        return dtype in _strictly().dtypes(device=_place(device))
    if name in LIBRARIES:
        return hasattr(np, dtype) or find_spec("ml_dtypes") is not None
    return get_backend(name).unsupported_dtype(dtype, CPU) is None


def _is_narrowed(name: str, dtype: str, device: str) -> bool:
    """Whether a 64-bit dtype is wider than the default of its kind."""
    if name == "torch":
        return is_inexact(dtype)
    if name == "jax":
        return not has("jax", dtype)
    if name == "array_api_strict":
        kinds = {"int": "integral", "float": "real floating", "complex": "complex floating"}
        default = _strictly().default_dtypes(device=_place(device))[kinds[category(dtype)]]
        return str(default).rpartition(".")[2] in WIDE.values()
    return name not in LIBRARIES and get_backend(name).default_dtype(category(dtype), CPU) in WIDE.values()


def _strictly() -> Any:
    import array_api_strict

    return array_api_strict.__array_namespace_info__()


def _place(device: str) -> Any:
    import array_api_strict

    names = get_backend("array_api_strict").devices()[1:]
    return array_api_strict.Device(device if device in names else "CPU_DEVICE")


def nearest_of(dtype: str, there: Sequence[str]) -> str:
    """Of these dtypes `dtype`, or the one of its kind that is nearest to it."""
    alike = [word for word in there if category(word) == category(dtype)]
    if dtype in there or not alike:
        return dtype
    sizes = {word: DTYPES[word].bits for word in alike}
    enough = [word for word in alike if _holds_all_of(dtype, word)]
    size = min(sizes[word] for word in enough) if enough else max(sizes.values())
    chosen = [word for word in enough or alike if sizes[word] == size]
    signed = [word for word in chosen if (word[0] == "u") is (dtype[0] == "u")] or chosen
    return next((word for word in signed if word != "bfloat16"), signed[0])


def _holds_all_of(dtype: str, other: str) -> bool:
    """Whether every value goes there and is the same; of small dtypes each is tried."""
    native, wide = native_dtype(dtype), native_dtype(other)
    if native.itemsize > 2 or (category(dtype) != "float" and native.kind != "V"):
        return np.can_cast(native, wide)
    values = np.arange(1 << 8 * native.itemsize).astype(f"u{native.itemsize}").view(native)
    if not np.can_cast(native, wide, "unsafe"):
        return False
    with np.errstate(all="ignore"):
        given, kept = values.astype("f8"), values.astype(wide).astype("f8")
    return np.array_equal(given, kept, equal_nan=True)


# -- what must be refused ------------------------------------------------------------------------


def refusals(asked: Asked) -> dict[type[XBridgeError], tuple[str, ...]]:
    """Every refusal that is due, and what its message may tell to type next."""
    due: dict[type[XBridgeError], tuple[str, ...]] = {}
    options, tracked = asked.options, asked.sample.tracked
    if options.get("grad") == "keep" and options.get("requires_grad") is False:
        due[OptionError] = ("one of them",)
    if asked.device not in get_backend(asked.target).devices():
        due[DeviceError] = (
            ("device='cpu'",) if asked.leaves else ("device='cpu'", f"in {asked.target} itself")
        )
    if steps := _lacking(asked):
        due[DTypeError] = steps
    if tracked and options.get("grad") == "keep" and (asked.leaves or not is_inexact(asked.dtype)):
        due[GradientError] = ("grad=None",)
    if options.get("requires_grad") and (steps := _cannot_begin(asked)):
        due[GradientError] = (*due.get(GradientError, ()), *steps)
    shared = shares(asked, copy=None) or not (asked.sample.values.size or _is_cast(asked))
    if options.get("copy") is False and not shared:
        due[CopyError] = ("copy=None",)
    if options.get("dtype") in ("default", "nearest") and loses(asked.sample.values, asked.dtype):
        due[ValueLossError] = (f"naming it: dtype={asked.dtype!r}",)
    return due


def _lacking(asked: Asked) -> tuple[str, ...]:
    """What to type where there is no such dtype, or no such cast."""
    given, dtype = asked.given, asked.dtype
    if category(given) == "complex" and category(dtype) in ("int", "float"):
        return ("x.real" if hasattr(asked.sample.array, "real") else "to_numpy(x).real",)
    if not has(asked.target, dtype, asked.device):
        return ("dtype='nearest'" if asked.options.get("dtype") is None else "dtype=",)
    if given != dtype and cast(asked) is None:
        return ("",)
    return ()


def _is_cast(asked: Asked) -> bool:
    """Whether the items change: to another dtype, or to the order of bytes of the one that was asked for."""
    native = get_backend(asked.source).array_info(asked.sample.array).native_byteorder
    return asked.dtype != asked.given or not (native or asked.options.get("dtype") is None)


def _cannot_begin(asked: Asked) -> tuple[str, ...]:
    """What to type where no new history can begin."""
    if not library(asked.target).gradients:
        return ("backend='torch'",)
    if not is_inexact(asked.dtype):
        return ("dtype='float32'",)
    if not asked.sample.tracked or asked.detaches:
        return ()
    itself = not asked.leaves and asked.sample.array.is_leaf and shares(asked, asked.options.get("copy"))
    return () if itself else ("grad='detach'",)


def loses(values: HostArray, dtype: str) -> bool:
    """Whether an integer does not fit, or a finite number becomes infinite."""
    if dtype == values.dtype.name or not values.size:
        return False
    if category(dtype) == "int":
        low, high = exact_integers(dtype)
        return not low <= min(values.ravel().tolist()) <= max(values.ravel().tolist()) <= high
    with np.errstate(all="ignore"):
        narrow = values.astype(dtype)
    parts = [(np.real(x), np.imag(x)) for x in (values, narrow)]
    return any(bool((np.isfinite(a) & np.isinf(b)).any()) for a, b in zip(*parts, strict=True))


# -- what must come out --------------------------------------------------------------------------


def cast(asked: Asked) -> HostArray | None:
    """The target's own cast, else the source's, else NumPy's: whose both dtypes are. None if it has none."""
    both = (asked.given, asked.dtype)
    name = next(
        (name for name in (asked.target, asked.source) if all(has(name, word) for word in both)), HOST
    )
    values = asked.sample.values
    if name == "torch":
        import torch

        from xbridge.testing.samples.torch import dense

        return read("torch", dense(values).to(getattr(torch, asked.dtype)))
    if name == "jax":
        import jax

        return read("jax", jax.device_put(values).astype(asked.dtype))
    if not np.can_cast(values.dtype, native_dtype(asked.dtype), "unsafe"):
        return None
    if name not in LIBRARIES:
        return read(name, get_backend(name).astype(plain_array(name, values), asked.dtype))
    with np.errstate(all="ignore"):
        return values.astype(native_dtype(asked.dtype))


def left_open(asked: Asked) -> HostArray:
    """The elements whose cast no standard settles: out of range to an integer, too large for a float8."""
    values, dtype = asked.sample.values, asked.dtype
    if not is_inexact(asked.given) or not (category(dtype) == "int" or not DTYPES[dtype].rounds_as_numpy):
        return np.zeros(values.shape, bool)
    with np.errstate(all="ignore"):
        wide = values.astype("float64")
        if category(dtype) == "int":
            low, high = exact_integers(dtype)
            return ~((wide >= low) & (wide < high))
        import ml_dtypes

        ends = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call] # theirs
        return ~((wide >= float(ends.min)) & (wide <= float(ends.max)))


def shares(asked: Asked, copy: bool | None) -> bool:
    """Whether the result lies in the memory of the source."""
    sample, source, target = asked.sample, library(asked.source), library(asked.target)
    info = get_backend(asked.source).array_info(sample.array)
    if copy or asked.dtype != asked.given or asked.device != asked.start:
        return False
    if asked.options.get("dtype") is not None and not info.native_byteorder:
        return False
    if not asked.leaves:
        return not (asked.detaches and sample.tracked and not target.readonly)
    if is_pending(asked) or (target.unchanging and not source.unchanging):
        return False
    return expresses(asked) and (target.readonly or not is_guarded(asked))


def expresses(asked: Asked) -> bool:
    """Whether the target can look at memory that lies like this; others than the usual are asked."""
    info, layout = (
        get_backend(asked.source).array_info(asked.sample.array),
        place(asked.source, asked.sample.array),
    )
    if asked.target in ("numpy", "dask"):
        return True
    if asked.target in ("array_api_strict", "numpy_readonly"):
        return info.native_byteorder
    if asked.target == "torch":
        in_items = all(stride >= 0 and stride % layout.itemsize == 0 for stride in layout.strides)
        return info.native_byteorder and in_items and is_aligned(layout, asked.sample.values.dtype.alignment)
    reads_in = "sharing" in get_backend(asked.target).gaps and not library(asked.target).unchanging
    return get_backend(asked.target).accepts_layout(info, layout) and not reads_in


def place(name: str, x: Array) -> MemoryLayout:
    """Where an array lies; one of Dask's lies where the only chunk of its graph does, if that is there."""
    if name == "dask" and len(x.dask) == 1:
        (chunk,) = x.dask.values()
        x = getattr(chunk, "value", chunk)
    return memory_of(name, x)


def is_pending(asked: Asked) -> bool:
    """Whether the bytes are still to be computed, or put in order."""
    if asked.source not in LIBRARIES:
        return not get_backend(asked.source).memory_layout(asked.sample.array).materialized
    by_columns = asked.sample.layout == "by columns" and asked.sample.values.ndim > 1
    return asked.source == "dask" or by_columns or asked.sample.layout in ("conj", "neg")


def is_guarded(asked: Asked) -> bool:
    """Whether nobody else may write to the memory of the source."""
    layout = place(asked.source, asked.sample.array)
    repeats = byte_addresses(layout).size < asked.sample.values.nbytes and not layout.is_unallocated()
    return asked.sample.tracked or repeats or not layout.writable
