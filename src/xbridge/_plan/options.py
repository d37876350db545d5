"""Read the options of a call: dtype and device objects of any library become names, the rest is checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from numbers import Integral
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from xbridge._core.devices import Device, device_named
from xbridge._core.dtypes import DTYPES, UNNAMED, is_numeric, of_python
from xbridge._core.protocol import Backend
from xbridge._core.tracing import constant_in_traces, traced_as
from xbridge._core.wording import option_of, text_of
from xbridge._host.exporters import is_of_library, names_of
from xbridge._host.memory import dtype_of_code
from xbridge._plan.steps import Options
from xbridge._registry.call_cache import cached, decline, lookup, lookup_direct, try_in_order
from xbridge._registry.registry import backends_for_object, get, is_root
from xbridge.backends import HOST, INDEX
from xbridge.errors import FOREIGN_ERRORS, DeviceError, DTypeError, OptionError, XBridgeError, shown

T = TypeVar("T")

_CONSTANT = (str, Device, type, bool, type(None), ModuleType)
"""Types whose values always mean the same, so that a cached call may have them in its key."""

_TRUE, _FALSE = ("1", "true", "yes", "always", "keep"), ("0", "false", "no", "never")
_WRITTEN = re.compile(r"(<class ')?(\w+)\.(?:\w+\.)*(\w+)(?(1)'>)")
"""Matches the `str` of a dtype or of a class that stands for one; groups 2 and 3 are package and name."""


class CallOptions(NamedTuple):
    """The options of a call as the user gave them.

    They are passed on as one object, so a new option is a new field. Only the hot functions of `_api.py`,
    which write keys of the cache inline, depend on the order of the fields.
    """

    device: object = None
    dtype: object = None
    copy: Any = None
    grad: Any = None
    requires_grad: Any = None
    writable: Any = None
    order: Any = None

    def key(self, verb: str, target: object, types: object, like: object = None) -> tuple[object, ...]:
        """Return the key by which a call with these options is cached.

        A verb that takes `like` has its type in the key, and a tree in its place whether it takes exporters.
        At the end of a key, the options that few functions have are left out if they are None, because each
        item takes 10 ns in each call.
        """
        given: tuple[object, ...] = self if like is None else (like, *self)
        while given[-1] is None and len(given) > _COMMON + (like is not None):
            given = given[:-1]
        return (verb, target, types, *given)

    @traced_as(lambda *_: decline)
    def lookup(
        self, verb: str, target: object, types: object, like: type | None = None
    ) -> Callable[..., Any]:
        """Return the function that repeats a call with these options, or one that declines."""
        key = self.key(verb, target, types, like)
        return lookup(key, self.copy, self.requires_grad, self.writable)

    def are_constant(self, target: object = None) -> bool:
        """Return True if the options and the target mean the same in each call, so the call may be cached."""
        for option in (target, *self):
            if type(option) not in _CONSTANT:
                backends = backends_for_object(option)
                if not backends or None in [backend.fast.plan_state for backend in backends]:
                    return False
        return True


def cache_key(options: Options, name: str, cls: type) -> tuple[object, ...] | None:
    """Return the key of a conversion; None if it has more options than users give in one call."""
    if any(options[len(CallOptions._fields) :]):
        return None
    device, *others = options[: len(CallOptions._fields)]
    # A plain string is compared faster than a device.
    return CallOptions(device and str(device), *others).key("convert", name, cls)


@traced_as(lambda *_: decline)
def find_converter(options: Options, name: str, cls: type) -> Callable[[Any], Any]:
    """Return a function that converts arrays of a type without a plan, or returns None to decline."""
    key = cache_key(options, name, cls)
    known = decline if key is None else cached.get(key, decline)
    if options != Options():
        return known
    plain = lookup_direct(name, cls)
    return plain if known is decline else known if plain is decline else try_in_order(plain, known)


_COMMON = CallOptions._fields.index("requires_grad")
"""The number of options that most functions have."""

NO_OTHERS = CallOptions()[CallOptions._fields.index("copy") : _COMMON]
"""The end of a key with a device and a dtype alone. Such a key stays right if an option is added."""


def read_options(backends: tuple[Backend, ...], given: CallOptions) -> Options:
    """Check the options of a call. `backends` are asked first what a dtype or device object means."""
    grad, order, dtype = given.grad, given.order, given.dtype
    for option in ("copy", "requires_grad", "writable"):
        value = getattr(given, option)
        if value is not None and value is not True and value is not False:
            raise _switch_error(option, value)
    if grad is not None and not (isinstance(grad, str) and grad in ("keep", "detach")):
        hint = "aligned(vjp=f)" if callable(grad) else "grad='keep'" if grad is True else "grad='detach'"
        raise OptionError.build(f"take grad={shown(grad)}", "it is None, 'keep' or 'detach'", hint)
    if given.requires_grad is False:
        if grad == "keep":
            action = "take requires_grad=False with grad='keep'"
            raise OptionError.build(action, "they contradict each other", "grad='keep'")
        grad = "detach"
    if order is not None and not (isinstance(order, str) and order == "C"):
        hint = "" if isinstance(order, str) and order in "FKA" else "order='C'"  # those are other layouts
        raise OptionError.build(f"take order={shown(order)}", "it is None or 'C'", hint)
    device: Device | None = _read("device", given.device, backends)
    by_dtype = _read_dtypes(dtype, backends) if isinstance(dtype, Mapping) else ()
    named: str | None = None if isinstance(dtype, Mapping) else _read("dtype", dtype, backends)
    others = (given.requires_grad or None, given.writable, order)
    return Options(device, named, given.copy, grad, *others, by_dtype=by_dtype)


def _read_dtypes(given: Mapping[Any, Any], backends: tuple[Backend, ...]) -> tuple[tuple[str, str], ...]:
    """Return the names of the dtypes of a mapping, each with that of the dtype that it is mapped to."""
    named = []
    for pair in given.items():
        try:
            source, target = (_read("dtype", dtype, backends) for dtype in pair)
        except XBridgeError as error:  # its hint would name one dtype for all arrays
            raise type(error).build(error.action, error.reason) from error.__cause__
        if source is None or source in UNNAMED or target is None:
            reason, hint = "it maps the dtypes of arrays to others", "dtype={'float64': 'float32'}"
            raise _option_error("dtype", given, reason, hint)
        named.append((source, target))
    return tuple(named)


def check_options(
    backends: tuple[Backend, ...],
    *,
    device: object = None,
    dtype: object = None,
    copy: object = None,
    grad: object = None,
    order: object = None,
) -> Options:
    """Check options of a call, as `read_options` does."""
    return read_options(backends, CallOptions(device, dtype, copy, grad, order=order))


def _switch_error(option: str, given: object) -> OptionError:
    word = shown(given, str).casefold()
    meant = True if word in _TRUE else False if word in _FALSE else None
    return OptionError.build(
        f"take {option}={shown(given)}", "it is None, True or False", f"{option}={meant}"
    )


def _read(option: str, given: object, backends: tuple[Backend, ...]) -> Any:
    """Read the option `device` or `dtype`, which may be an object of any library."""
    try:
        return None if given is None else (_device if option == "device" else _dtype)(given, backends)
    except XBridgeError:
        raise
    except FOREIGN_ERRORS as error:
        raise _option_error(option, given, f"to look at it failed with {error!r}") from error


def _device(device: Any, backends: tuple[Backend, ...]) -> Device:
    if isinstance(device, Device):
        return device
    if isinstance(device, str):
        word = device if type(device) is str else str.__str__(device)  # a subclass may have no hash
        if word in DTYPES:
            raise _option_error("device", device, "it is a dtype", f"dtype={word!r}")
        if word in INDEX:
            raise _option_error("device", device, "it is a backend", f"asarray(x, backend={word!r})")
        return device_named(device)
    found = _ask_for_name(lambda backend: backend.device_name(device), device, backends)
    if found is not None:
        return found
    if isinstance(device, ModuleType):
        reason = "it is a module, and a device is named by a string, such as 'cuda'"
        raise DeviceError.build(f"read device {device.__name__}", reason)
    if not isinstance(device, Integral) or isinstance(device, bool):
        raise _option_error("device", device, "no library knows it as a device")
    if not 0 <= (index := int(device)) < 1 << 31:
        raise _option_error("device", index, "an index counts from 0, and has at most 31 bits")
    return device_named(f"gpu:{index}")  # the target's accelerator of that index


def _dtype(dtype: object, backends: tuple[Backend, ...]) -> str:
    if isinstance(dtype, str):
        # `str` of an enumeration's member has the class in it.
        word = dtype if type(dtype) is str else str.__str__(dtype)
        found: str | None = word if word in DTYPES or word in UNNAMED else _parse_dtype(word)
    else:
        found = of_python(dtype) or _ask_for_name(lambda backend: backend.dtype_name(dtype), dtype, backends)
    if not found:
        raise _unknown_dtype_error(dtype)
    return found


@constant_in_traces
def _parse_dtype(word: str) -> str:
    """Return the dtype that a string such as "torch.float32" or NumPy's "f4" means; "" if none."""
    parts = _WRITTEN.fullmatch(word)
    if parts and is_numeric(parts[3]) and is_root(parts[2]):
        return parts[3]
    code = dtype_of_code(word)
    found = get(HOST).dtype_name(code) if code is not None and code.isnative else None
    return found if found in DTYPES else ""


def _ask_for_name(
    name_of: Callable[[Backend], T | None], thing: object, backends: tuple[Backend, ...]
) -> T | None:
    """Return the name that the first backend which knows an object gives it; ask `backends` first."""
    for asked in (backends, None):
        for backend in asked or backends_for_object(thing):
            name = name_of(backend)
            if name is not None:
                return name
    return None


def _unknown_dtype_error(dtype: object) -> XBridgeError:
    from difflib import get_close_matches  # noqa: PLC0415 -- 6 ms, and only an error needs it

    word = shown(dtype, str)
    coded = dtype_of_code(word)
    native = None if coded is None else get(HOST).dtype_name(coded.newbyteorder("="))
    if native in DTYPES:
        reason = "a result is in the byte order of this machine"
        return _option_error("dtype", dtype, reason, f"dtype={native!r}")
    if isinstance(dtype, str) and option_of(dtype, ["device"]):
        return _option_error("dtype", dtype, "it is a device", f"device={dtype!r}")
    word = names_of(dtype)[0] if is_of_library(dtype) else str(getattr(dtype, "__name__", word))
    if word in INDEX:
        return _option_error("dtype", dtype, "it is a backend", f"asarray(x, backend={word!r})")
    # A mistyped name is expected to have the right width at least. No dtype has the values of tf32.
    alike = [name for name in (*DTYPES, *UNNAMED) if _digits(name) == _digits(word)]
    near = get_close_matches(word.casefold(), alike) if coded is None and word != "tf32" else []
    reason = "it is neither a canonical name, such as 'float32', nor a library's native dtype"
    return _option_error("dtype", dtype, reason, f"dtype={near[0]!r}" if near else "")


def _digits(word: str) -> list[str]:
    return [*filter(str.isdecimal, word)]


def _option_error(option: str, given: object, reason: str, hint: str | None = None) -> XBridgeError:
    error, example = (DeviceError, "device='cpu'") if option == "device" else (DTypeError, "dtype='float32'")
    if text_of(given) == "y" and not issubclass(type(given), get(HOST).scalar_types):
        reason, hint = "it is an array", f"{option}=y.{option}"
    return error.build(f"read {option} {text_of(given)}", reason, example if hint is None else hint)
