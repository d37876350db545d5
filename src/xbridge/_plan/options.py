"""Read the options of a call: dtype and device objects of any library become names, the rest is checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from numbers import Integral
from operator import is_
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from xbridge._core.devices import Device, device_named
from xbridge._core.dtypes import DTYPES, UNNAMED, is_numeric, of_python
from xbridge._core.protocol import Backend
from xbridge._core.tracing import constant_in_traces, traced_as
from xbridge._core.wording import option_of, text_of
from xbridge._host.memory import dtype_of_code
from xbridge._plan.steps import Options
from xbridge._registry.call_cache import decline, lookup, lookup_direct, try_in_order
from xbridge._registry.registry import backends_for_object, get, is_root
from xbridge.backends import HOST, INDEX
from xbridge.errors import FOREIGN_ERRORS, DeviceError, DTypeError, OptionError, XBridgeError, shown

T = TypeVar("T")

_CONSTANT = (str, Device, type, bool, type(None), ModuleType)
"""Types whose values always mean the same, so that a cached call may have them in its key."""

_ALIASES = {
    "int": "int64",
    "long": "int64",
    "float": "float64",
    "double": "float64",
    "single": "float32",
    "half": "float16",
    "complex": "complex128",
    "floattensor": "float32",
    "doubletensor": "float64",
    "halftensor": "float16",
    "longtensor": "int64",
}
_ARROW = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""The names of Arrow's dtype objects that NumPy gives to others."""
_NO_NUMBERS = re.compile(
    r"(?i:object|str|bytes|datetime|timedelta|category|date$)|[<>=|]?[OSUVMm]\d*(\[.+\])?$"
)
"""Matches the names, and NumPy's codes, of dtypes for other things than numbers."""
_SAME = ("auto", "same", "keep", "preserve", "native", "none", "None")
"""Words of other libraries for the dtype that an array has."""
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

    def are_plain(self) -> bool:
        """Return True if no option was given, by identity, because NumPy's float64 dtype equals None."""
        return self is PLAIN or all(map(is_, self, PLAIN))

    def key(self, verb: str, target: object, types: object, like: type | None = None) -> tuple[object, ...]:
        """Return the key by which a call with these options is cached.

        A verb that takes `like` has its type in the key. At its end, the options that few functions have are
        left out if they are None, because each item of a key takes 10 ns in each call.
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

    def are_canonical(self, options: Options) -> bool:
        """Return True if conversions with these options, once checked, are cached by the options as given."""
        checked = canonical(options) or PLAIN
        return all(a is b or (type(a) is str and a == b) for a, b in zip(self, checked, strict=True))

    def are_constant(self, target: object = None) -> bool:
        """Return True if the options and the target mean the same in each call, so the call may be cached."""
        for option in (target, *self):
            if type(option) not in _CONSTANT:
                backends = backends_for_object(option)
                if not backends or None in [backend.fast.plan_state for backend in backends]:
                    return False
        return True


PLAIN = CallOptions()
"""The options if none was given."""


def canonical(options: Options) -> CallOptions | None:
    """Return checked options as a call gives them, by which conversions are cached; None if they are not."""
    internal = (options.check_loss, options.compiled, options.unsafe, options.by_dtype)
    if any(internal) or options.order:  # no call gives these, and an order depends on the strides
        return None
    device, requires_grad = options.device and str(options.device), options.requires_grad or None
    return CallOptions(device, options.dtype, options.copy, options.grad, requires_grad, options.writable)


def cache_key(options: Options, name: str, cls: type) -> tuple[object, ...] | None:
    """Return the key of a conversion to a backend; None if no conversion with these options is cached."""
    given = canonical(options)
    return given and given.key("convert", name, cls)


@traced_as(lambda *_: decline)
def find_converter(options: Options, name: str, cls: type) -> Callable[[Any], Any]:
    """Return a function that converts arrays of a type without a plan, or returns None to decline."""
    given = canonical(options)
    if given is None:
        return decline
    known = given.lookup("convert", name, cls)
    plain = lookup_direct(name, cls) if given == PLAIN else decline
    if known is decline:
        return plain
    return known if plain is decline else try_in_order(plain, known)


_COMMON = CallOptions._fields.index("requires_grad")
"""The number of options that most functions have."""

NO_OTHERS = PLAIN[CallOptions._fields.index("copy") : _COMMON]
"""The end of a key with a device and a dtype alone. Such a key stays right if an option is added."""


def read_options(backends: tuple[Backend, ...], given: CallOptions) -> Options:
    """Check the options of a call. `backends` are asked first what a dtype or device object means."""
    copy, grad, requires_grad, writable = given.copy, given.grad, given.requires_grad, given.writable
    if copy is not None and copy is not True and copy is not False:
        raise _switch_error("copy", copy)
    if grad is not None and not (isinstance(grad, str) and grad in ("keep", "detach")):
        hint = "grad='keep'" if _switch_meant_by(grad) is True else "grad='detach'"
        raise OptionError.build(f"take grad={shown(grad)}", "it is None, 'keep' or 'detach'", hint)
    if requires_grad is not None and requires_grad is not True and requires_grad is not False:
        raise _switch_error("requires_grad", requires_grad)
    if requires_grad is False:
        if grad == "keep":
            action = "take requires_grad=False with grad='keep'"
            raise OptionError.build(action, "they contradict each other", "grad='keep'")
        grad = "detach"
    if writable is not None and writable is not True and writable is not False:
        raise _switch_error("writable", writable)
    order = given.order
    if order is not None and not (isinstance(order, str) and order == "C"):
        hint = "" if isinstance(order, str) and order in "FKA" else "order='C'"  # those are other layouts
        raise OptionError.build(f"take order={shown(order)}", "it is None or 'C'", hint)
    device, dtype = read_device(given.device, backends), given.dtype
    by_dtype = _read_dtypes(dtype, backends) if isinstance(dtype, Mapping) else ()
    named = None if isinstance(dtype, Mapping) else read_dtype(dtype, backends)
    options = Options(device, named, copy, grad, requires_grad is True, writable=writable)
    return options._replace(order=order, by_dtype=by_dtype)


def _read_dtypes(given: Mapping[Any, Any], backends: tuple[Backend, ...]) -> tuple[tuple[str, str], ...]:
    """Return the names of the dtypes of a mapping, each with that of the dtype that it is mapped to."""
    named = []
    for key, value in given.items():
        try:
            source, target = read_dtype(key, backends), read_dtype(value, backends)
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
    reason, hint = "it is None, True or False", f"{option}={_switch_meant_by(given)}"
    return OptionError.build(f"take {option}={shown(given)}", reason, hint)


def _switch_meant_by(given: object) -> bool | None:
    """Return the switch that a value stands for in other calls; None if that is unknown."""
    word = shown(given, str).casefold()
    return True if word in _TRUE else False if word in _FALSE else None


def read_device(given: object, backends: tuple[Backend, ...]) -> Device | None:
    """Return the device that a user gave by name or as an object of a library; ask `backends` first."""
    found: Device | None = _read("device", given, backends)
    return found


def read_dtype(given: object, backends: tuple[Backend, ...]) -> str | None:
    """Return the name of the dtype that a user gave by name or as an object; ask `backends` first."""
    found: str | None = _read("dtype", given, backends)
    return found


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
    meant = option_of(dtype, ["device"]) if isinstance(dtype, str) else ""
    if meant:
        return _option_error("dtype", dtype, f"it is a {meant}", f"{meant}={dtype!r}")
    word = str(getattr(dtype, "__name__", word))
    if word in INDEX:
        return _option_error("dtype", dtype, "it is a backend", f"asarray(x, backend={word!r})")
    if word in _SAME:
        return _option_error("dtype", dtype, "None keeps the dtype", "dtype=None")
    if _NO_NUMBERS.match(word):
        return _option_error("dtype", dtype, "arrays hold numbers, and it is a dtype of other things", "")
    word = re.sub(r"^fp(?=\d)", "float", word.casefold())
    alike = [name for name in (*DTYPES, *UNNAMED) if _digits(name) == _digits(word)]
    alias = (_ALIASES if isinstance(dtype, (str, type)) else _ARROW).get(word)
    near = [alias] if alias else get_close_matches(word, alike) if word != "tf32" else []
    begun = [name for name in DTYPES if name.startswith(word)] if isinstance(dtype, str) else []
    near = near or (begun if len(begun) == 1 else [])
    reason = "it is neither a canonical name, such as 'float32', nor a library's native dtype"
    hint = f"one of {', '.join(map(repr, begun))}" if begun else ""
    return _option_error("dtype", dtype, reason, f"dtype={near[0]!r}" if near and coded is None else hint)


def _digits(word: str) -> list[str]:
    """Return the digits in a word. A mistyped dtype is expected to have the right width at least."""
    return [*filter(str.isdecimal, word)]


def _option_error(option: str, given: object, reason: str, hint: str | None = None) -> XBridgeError:
    error, example = (DeviceError, "device='cpu'") if option == "device" else (DTypeError, "dtype='float32'")
    if text_of(given) == "y" and not issubclass(type(given), get(HOST).scalar_types):
        reason, hint = "it is an array", f"{option}=y.{option}"
    return error.build(f"read {option} {text_of(given)}", reason, example if hint is None else hint)
