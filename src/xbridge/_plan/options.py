"""Read options: any library's dtype and device objects become names, everything else is checked."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

from xbridge import _host
from xbridge._core.devices import device_named
from xbridge._core.dtypes import DTYPES, UNNAMED, of_python
from xbridge._core.dynamo import constant
from xbridge._plan.steps import Request
from xbridge.backends import HOST
from xbridge.backends._registry import get, is_root, kin
from xbridge.errors import FOREIGN_ERRORS, DeviceError, DTypeError, OptionError, XBridgeError, shown

if TYPE_CHECKING:
    from xbridge._core.devices import Device
    from xbridge._core.protocol import Backend


_ALIASES = {
    "int": "int64",
    "long": "int64",
    "float": "float64",
    "double": "float64",
    "single": "float32",
    "half": "float16",
    "complex": "complex128",
}


def read_request(
    rooms: tuple[Backend, ...],
    *,
    device: object,
    dtype: object,
    copy: object,
    grad: object,
    track: bool = False,
    traced: bool = False,
) -> Request:
    """The options as a request; `rooms` are asked first what a dtype or device object means."""
    if copy is not None and copy is not True and copy is not False:
        raise OptionError.because(f"take copy={shown(copy)}", "it is None, True or False", "copy=None")
    if grad is not None and not (isinstance(grad, str) and grad in ("keep", "detach")):
        raise OptionError.because(
            f"take grad={shown(grad)}", "it is None, 'keep' or 'detach'", "grad='detach'"
        )
    return Request(_device(device, rooms), _dtype(dtype, rooms), copy, grad, track, traced=traced)


def with_requires_grad(grad: object, requires_grad: object) -> object:
    """What `requires_grad` makes of `grad`."""
    if requires_grad is None or requires_grad is True:
        return grad
    if requires_grad is not False:
        raise OptionError.because(
            f"take requires_grad={shown(requires_grad)}",
            "it is None, True or False",
            "requires_grad=None",
        )
    if grad == "keep":
        raise OptionError.because(
            "take requires_grad=False with grad='keep'", "they contradict each other", "one of them"
        )
    return "detach"


def _device(device: Any, rooms: tuple[Backend, ...]) -> Device | None:
    if device is None:
        return None
    if isinstance(device, str):
        return device_named(device)
    try:
        names = (room.device_name(device) for asked in (rooms, None) for room in asked or kin(device))
        found = next((name for name in names if name is not None), None)
        is_index = found is None and isinstance(device, Integral) and not isinstance(device, bool)
    except XBridgeError:
        raise
    except FOREIGN_ERRORS as error:
        raise _refused("device", device, f"to look at it failed with {error!r}", "device='cpu'") from error
    if is_index:
        return _accelerator(int(device))
    if found is not None:
        return found
    raise _refused("device", device, "no library knows it as a device", "device='cpu'")


def _accelerator(index: int) -> Device:
    """The target's accelerator of that index."""
    if 0 <= index < 1 << 31:
        return device_named(f"gpu:{index}")
    raise _refused("device", index, "an index counts from 0, and has at most 31 bits", "device='cpu'")


def _dtype(dtype: object, rooms: tuple[Backend, ...]) -> str | None:
    if dtype is None:
        return None
    if isinstance(dtype, str):
        word = str(dtype)
        found = word if word in DTYPES or word in UNNAMED else _spelt(word)
    else:
        try:
            names = (room.dtype_name(dtype) for asked in (rooms, None) for room in asked or kin(dtype))
            found = of_python(dtype) or next((name for name in names if name is not None), "")
        except XBridgeError:
            raise
        except FOREIGN_ERRORS as error:
            why = f"to look at it failed with {error!r}"
            raise _refused("dtype", dtype, why, "dtype='float32'") from error
    if not found:
        raise _unknown(dtype)
    return found


@constant
def _spelt(word: str) -> str:
    """What a code of NumPy's stands for, or a library's dtype in the words of `str`; "" if it is neither."""
    root, _, name = word.removeprefix("<class '").removesuffix("'>").partition(".")
    name = name.rpartition(".")[2]
    if name in DTYPES and is_root(root):
        return name
    coded = _host.dtype_of_code(word)
    found = None if coded is None else get(HOST).dtype_name(coded)
    return found if found in DTYPES else ""


def _unknown(dtype: object) -> XBridgeError:
    from difflib import get_close_matches  # noqa: PLC0415 -- 6 ms, and only an error needs it

    word = shown(dtype, str)
    coded = _host.dtype_of_code(word)
    native = None if coded is None else get(HOST).dtype_name(coded.newbyteorder("="))
    if native in DTYPES:
        why = "what comes out is in the byte order of this machine"
        return _refused("dtype", dtype, why, f"dtype={native!r}")
    word = word.casefold()
    alike = [name for name in (*DTYPES, "default") if _digits(name) == _digits(word)]
    near = [_ALIASES[word]] if word in _ALIASES else get_close_matches(word, alike, n=1)
    why = "it is no canonical name and no library's native dtype"
    do = f"dtype={near[0]!r}" if near and coded is None else f"one of {', '.join(DTYPES)}"
    return _refused("dtype", dtype, why, do)


def _digits(word: str) -> str:
    """The digits in a word: who mistypes a dtype knows how wide it is."""
    return "".join(filter(str.isdecimal, word))


def _refused(option: str, given: object, why: str, do: str) -> XBridgeError:
    error = DeviceError if option == "device" else DTypeError
    return error.because(f"read {option} {shown(given)}", why, do)
