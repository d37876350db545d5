"""Complete a backend: check the names that its module defines, and add defaults for the others.

A completed backend is a module object, because a compiler can follow those. It has all names of the
backend's own module as attributes, which take precedence over the methods here. So a default that calls
another function of the protocol gets the module's own, if there is one. The module itself is unchanged.
"""

# ruff: noqa: ARG002 -- the protocol documents each verb and its parameters

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from xbridge._core.devices import CPU, Device, absent_device_error, is_of_kind
from xbridge._core.dtypes import DTYPES
from xbridge._core.protocol import (
    CONSTANTS,
    OBJECTS,
    OPTIONAL,
    REQUIRED,
    REQUIRED_TOGETHER,
    VERBS,
    Array,
    ArrayInfo,
    Backend,
    Fast,
    Gap,
    HostArray,
    MemoryLayout,
    Transfers,
    Unsupported,
)
from xbridge._host import memory as _host
from xbridge.backends import Entry, numpy
from xbridge.errors import (
    Chained,
    DeviceError,
    DTypeError,
    GradientError,
    OptionError,
    UnsupportedArrayError,
)


def complete(module: ModuleType, name: str, entry: Entry) -> Backend:
    """Return the backend of a module, or raise if that is not one."""
    fault = next(_faults(name, module), None)
    if fault:
        raise OptionError.build(f"use backend {name!r}", f"its module {entry} {fault[0]}", fault[1])
    completed: Any = Completed(module)  # type checkers treat its functions as methods
    return completed  # type: ignore[no-any-return]


def _faults(name: str, module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield each reason why a module is not a backend, with a hint."""
    words = names_written(module)
    missing = [word for word in REQUIRED if word not in words]
    if missing:
        yield f"has no {', '.join(missing)}", f"writing {', '.join(REQUIRED)} in it"
    for word in words:
        value, kind = getattr(module, word), CONSTANTS.get(word)
        if kind is None and word not in OBJECTS and not callable(value):
            yield f"says {word} = {value!r}, which is not a function", f"def {word}, or another name"
        if kind is not None and not isinstance(value, kind):
            yield f"says {word} = {value!r}, which is not a {kind.__name__}", f"{word} = {kind.__name__}(...)"
    for word in filter(words.__contains__, ("array_types", "scalar_types")):
        strange = [cls for cls in getattr(module, word) if not isinstance(cls, type)]
        if strange:
            yield f"names {strange[0]!r} in {word}, which is not a type", f"types alone in {word}"
    for word, *others in REQUIRED_TOGETHER:
        lacking = [other for other in others if word in words and other not in words]
        if lacking:
            yield f"has {word}, and no {', '.join(lacking)}", f"writing {', '.join(lacking)} too"
    if module.name != name:
        yield f"is named {module.name!r}", f"name = {name!r}"


class Completed(ModuleType):
    """A backend with every name of the protocol: those of a module, and these defaults for the others."""

    name: str
    array_types: tuple[type, ...]
    to_numpy: Callable[[Array], HostArray]
    from_numpy: Callable[[HostArray], Array]
    assumes_immutable: bool = False
    samples: str = ""
    scalar_types: tuple[type, ...] = ()
    host_casts: frozenset[tuple[str, str]] = frozenset()
    fast: Fast = Fast()
    transfers: Transfers = Transfers()

    def __init__(self, module: Any) -> None:
        super().__init__(module.__name__, module.__doc__)
        own = vars(self)
        own.update(dict.fromkeys((*OPTIONAL, *OBJECTS)))
        own.update({word: getattr(module, word) for word in names_written(module)})
        if not self.fast.types:
            self.fast = replace(self.fast, types=self.array_types)
        self.gaps = {**_implied_gaps(own), **own.get("gaps", {})}
        self.readonly = "readonly" not in self.gaps
        self.autograd = "autograd" not in self.gaps
        self.host_only = "devices" in self.gaps

    # -- layout and properties -----------------------------------------------------------------------
    def owns(self, cls: type, /) -> bool:
        return issubclass(cls, (*self.array_types, *self.scalar_types))

    def array_info(self, x: Array, /) -> ArrayInfo:
        return numpy.array_info(self.to_numpy(x))

    def dtype_of(self, x: Array, /) -> str:
        return self.array_info(x).dtype

    def device_of(self, x: Array, /) -> Device:
        return self.array_info(x).device

    def unsupported(self, x: Array, /, *, leaving: bool) -> Unsupported | None:
        if self.host_only:
            return numpy.unsupported(self.to_numpy(self.detach(x)), leaving=leaving)
        dtype = self.array_info(x).dtype
        if not leaving or dtype in DTYPES:
            return None
        return Unsupported(DTypeError, f"{dtype} is not a numeric dtype", "")

    def memory_layout(self, x: Array, /) -> MemoryLayout:
        return numpy.memory_layout(self.to_numpy(self.detach(x)))

    def accepts_layout(self, info: ArrayInfo, layout: MemoryLayout, /) -> bool:
        return info.native_byteorder

    def namespace(self, x: Array, /) -> ModuleType:
        if "namespace" in self.gaps:
            raise self._without_namespace(self.gaps["namespace"].reason)
        with Chained(lambda error: self._without_namespace(f"__array_namespace__ failed with {error!r}")):
            return x.__array_namespace__()  # type: ignore[no-any-return] # what the class says it is

    def copy(self, x: Array, /) -> Array:
        if "namespace" in self.gaps:
            return self._by_numpy(numpy.copy(self._read(x)), x)
        return self.namespace(x).asarray(x, copy=True)

    def stack(self, arrays: list[Array], shape: tuple[int, ...], /) -> Array:
        if "namespace" in self.gaps:
            return self._by_numpy(numpy.stack([self._read(x) for x in arrays], shape), arrays[0])
        xp = self.namespace(arrays[0])
        return xp.reshape(xp.stack(arrays), (*shape, *arrays[0].shape))

    # -- dtypes --------------------------------------------------------------------------------------
    dtype_name = staticmethod(numpy.dtype_name)
    unsupported_dtype = staticmethod(numpy.unsupported_dtype)
    default_dtype = staticmethod(numpy.default_dtype)

    def astype(self, x: Array, dtype: str, /) -> Array:
        if "namespace" in self.gaps:
            return self._by_numpy(numpy.astype(self._read(x), dtype), x)
        xp = self.namespace(x)
        return xp.astype(x, getattr(xp, dtype))

    def check_cast(self, x: Array, dtype: str, /) -> Array:
        _host.check_cast(self._read(x), dtype)
        return x

    def cast_matches_numpy(self, dtype: str, other: str, device: Device, /) -> bool:
        return self.host_only or (dtype, other) in self.host_casts

    # -- devices -------------------------------------------------------------------------------------
    def devices(self) -> tuple[Device, ...]:
        return (CPU,)

    def to_device(self, x: Array, device: Device, /) -> Array:
        return x

    def device_name(self, device: object, /) -> Device | None:
        return None

    def resolve_device(self, device: Device, near: Device, /) -> Device:
        present = self.devices()
        if device in present:
            return device
        alike = [each for each in (near, *present) if each in present and is_of_kind(each, device)]
        if alike:
            return alike[0]
        if not self.host_only:
            raise absent_device_error(self.name, device, present)
        action, reason = f"put an array of {self.name} on {device!r}", self.gaps["devices"].reason
        raise DeviceError.build(action, reason, "device='cpu'")

    # -- autograd ------------------------------------------------------------------------------------
    def detach(self, x: Array, /) -> Array:
        return x

    def require_grad(self, x: Array, /) -> Array:
        action, reason = f"make an array of {self.name} require grad", self.gaps["autograd"].reason
        raise GradientError.build(action, reason, "backend='torch'")

    def is_grad_enabled(self) -> bool:
        return "require_grad" in vars(self)

    # -- lazy ----------------------------------------------------------------------------------------
    def materialize(self, x: Array, /) -> Array:
        return x

    # -- compilers and threads -----------------------------------------------------------------------
    def is_tracing(self) -> bool:
        return False

    def untraced(self, fn: Callable[..., Array], /) -> Callable[..., Array]:
        return fn

    # -- helpers -------------------------------------------------------------------------------------
    def _without_namespace(self, reason: str) -> UnsupportedArrayError:
        action = f"find the namespace of an array of {self.name}"
        return UnsupportedArrayError.build(action, reason, "to_numpy(x)")

    def _read(self, x: Array) -> HostArray:
        """Return the values of an array in host memory."""
        x = self.materialize(self.detach(x))
        return self.to_numpy(x if self.array_info(x).device == CPU else self.to_device(x, CPU))

    def _by_numpy(self, host: HostArray, like: Array) -> Array:
        """Return a result of NumPy as an array of the library, on the device of another array."""
        made, device = self.from_numpy(host), self.array_info(like).device
        return made if device == CPU else self.to_device(made, device)


def names_written(module: ModuleType) -> list[str]:
    """Return the names of the protocol that a module defines itself."""
    words = (*CONSTANTS, *VERBS, *OPTIONAL, *OBJECTS)
    return [word for word in words if getattr(module, word, None) is not None]


def _implied_gaps(own: Mapping[str, Any]) -> dict[str, Gap]:
    reasons = {}
    if "devices" not in own:
        reasons["devices"] = "has arrays in host memory only"
    if "require_grad" not in own:
        reasons["autograd"] = "has no gradients"
    if "namespace" not in own and not any(hasattr(cls, "__array_namespace__") for cls in own["array_types"]):
        reasons["namespace"] = "has no array API namespace"
    return {feature: Gap("notimpl", f"{own['name']} {reason}") for feature, reason in reasons.items()}
