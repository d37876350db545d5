"""Read options: the dtype and device objects of any library become names, and all else is checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from numbers import Integral
from operator import is_
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from xbridge._core.devices import Device, device_named
from xbridge._core.dtypes import DTYPES, UNNAMED, is_numeric, of_python
from xbridge._core.dynamo import constant
from xbridge._core.protocol import Backend
from xbridge._host.memory import dtype_of_code
from xbridge._plan.steps import Options
from xbridge._registry.call_cache import CallKey
from xbridge._registry.registry import backends_for_object, get, is_root
from xbridge.backends import HOST
from xbridge.errors import FOREIGN_ERRORS, DeviceError, DTypeError, OptionError, XBridgeError, shown

T = TypeVar("T")

_CONSTANT = (str, Device, type, bool, type(None), ModuleType)
"""Types of options that always mean the same."""

_ALIASES = {
    "int": "int64",
    "long": "int64",
    "float": "float64",
    "double": "float64",
    "single": "float32",
    "half": "float16",
    "complex": "complex128",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "floattensor": "float32",
    "doubletensor": "float64",
    "halftensor": "float16",
    "longtensor": "int64",
}
_WRITTEN = re.compile(r"(<class ')?(\w+)\.(?:\w+\.)*(\w+)(?(1)'>)")
"""The package and the name in the `str` of a dtype, or of a class that stands for one."""


class CallOptions(NamedTuple):
    """The options of a call, as its caller gives them. They travel as one, and no code knows their order."""

    device: object = None
    dtype: object = None
    copy: Any = None
    grad: Any = None
    requires_grad: Any = None
    writable: Any = None

    def are_plain(self) -> bool:
        """Return True if no option is given. Some objects equal None, such as NumPy's dtype of 64 bits."""
        return self is PLAIN or all(map(is_, self, PLAIN))

    def key(self, verb: str, target: object, types: object, like: type | None = None) -> CallKey:
        """Return the key of a call with these options."""
        return CallKey(verb, target, types, like, self)

    def are_constant(self, target: object = None) -> bool:
        """Return True if the options, and the target, mean the same whenever they are given."""
        for option in (target, *self):
            if type(option) not in _CONSTANT:
                backends = backends_for_object(option)
                if not backends or None in [backend.plan_state for backend in backends]:
                    return False
        return True


PLAIN = CallOptions()
"""The options of a call without options."""


def read_options(backends: tuple[Backend, ...], given: CallOptions) -> Options:
    """Check the options of a call. `backends` are the first to read a dtype or device object."""
    copy, grad, requires_grad, writable = given.copy, given.grad, given.requires_grad, given.writable
    if copy is not None and copy is not True and copy is not False:
        raise OptionError.build(f"take copy={shown(copy)}", "it is None, True or False", "copy=None")
    if grad is not None and not (isinstance(grad, str) and grad in ("keep", "detach")):
        hint = "grad='keep'" if grad is True else "grad='detach'"
        raise OptionError.build(f"take grad={shown(grad)}", "it is None, 'keep' or 'detach'", hint)
    if requires_grad is not None and requires_grad is not True and requires_grad is not False:
        action = f"take requires_grad={shown(requires_grad)}"
        raise OptionError.build(action, "it is None, True or False", "requires_grad=None")
    if requires_grad is False:
        if grad == "keep":
            action = "take requires_grad=False with grad='keep'"
            raise OptionError.build(action, "they contradict each other", "one of them")
        grad = "detach"
    if writable is not None and writable is not True and writable is not False:
        action = f"take writable={shown(writable)}"
        raise OptionError.build(action, "it is None, True or False", "writable=True")
    device, dtype = _read("device", given.device, backends), _read("dtype", given.dtype, backends)
    return Options(device, dtype, copy, grad, requires_grad is True, writable=writable)


def _read(option: str, given: object, backends: tuple[Backend, ...]) -> Any:
    """Return the device or the dtype that an object of any library names."""
    try:
        return None if given is None else (_device if option == "device" else _dtype)(given, backends)
    except XBridgeError:
        raise
    except FOREIGN_ERRORS as error:
        raise _refused(option, given, f"to look at it failed with {error!r}") from error


def _device(device: Any, backends: tuple[Backend, ...]) -> Device:
    if isinstance(device, Device):
        return device
    if isinstance(device, str):
        return device_named(device)
    found = _named(lambda backend: backend.device_name(device), device, backends)
    if found is not None:
        return found
    if not isinstance(device, Integral) or isinstance(device, bool):
        raise _refused("device", device, "no library knows it as a device")
    if not 0 <= (index := int(device)) < 1 << 31:
        raise _refused("device", index, "an index counts from 0, and has at most 31 bits")
    return device_named(f"gpu:{index}")  # the target's accelerator of that index


def _dtype(dtype: object, backends: tuple[Backend, ...]) -> str:
    if isinstance(dtype, str):
        # `str` of an enumeration's member has the class in it.
        word = dtype if type(dtype) is str else str.__str__(dtype)
        found: str | None = word if word in DTYPES or word in UNNAMED else _spelt(word)
    else:
        found = of_python(dtype) or _named(lambda backend: backend.dtype_name(dtype), dtype, backends)
    if not found:
        raise _unknown(dtype)
    return found


@constant
def _spelt(word: str) -> str:
    """Return the dtype behind the `str` of a library's dtype, or behind a code of NumPy's; "" if none."""
    parts = _WRITTEN.fullmatch(word)
    if parts and is_numeric(parts[3]) and is_root(parts[2]):
        return parts[3]
    code = dtype_of_code(word)
    found = get(HOST).dtype_name(code) if code is not None and code.isnative else None
    return found if found in DTYPES else ""


def _named(name_of: Callable[[Backend], T | None], thing: object, backends: tuple[Backend, ...]) -> T | None:
    """Return the name of a library's object from the first backend that knows it, `backends` first."""
    for asked in (backends, None):
        for backend in asked or backends_for_object(thing):
            name = name_of(backend)
            if name is not None:
                return name
    return None


def _unknown(dtype: object) -> XBridgeError:
    from difflib import get_close_matches  # noqa: PLC0415 -- 6 ms, and only an error needs it

    word = shown(dtype, str)
    coded = dtype_of_code(word)
    native = None if coded is None else get(HOST).dtype_name(coded.newbyteorder("="))
    if native in DTYPES:
        reason = "a result is in the byte order of this machine"
        return _refused("dtype", dtype, reason, f"dtype={native!r}")
    word = str(getattr(dtype, "__name__", word)).casefold()
    alike = [name for name in (*DTYPES, *UNNAMED) if _digits(name) == _digits(word)]
    near = [_ALIASES[word]] if word in _ALIASES else get_close_matches(word, alike) if word != "tf32" else []
    reason = "it is not a canonical name or a library's native dtype"
    hint = f"dtype={near[0]!r}" if near and coded is None else f"one of {', '.join(DTYPES)}"
    return _refused("dtype", dtype, reason, hint)


def _digits(word: str) -> list[str]:
    """Return the digits in a word. A mistyped dtype still has the right width."""
    return [*filter(str.isdecimal, word)]


def _refused(option: str, given: object, reason: str, hint: str = "") -> XBridgeError:
    error, example = (DeviceError, "device='cpu'") if option == "device" else (DTypeError, "dtype='float32'")
    return error.build(f"read {option} {shown(given)}", reason, hint or example)
