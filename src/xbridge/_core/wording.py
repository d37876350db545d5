"""Write the values of a call for a message, and tell which option a misplaced value is for."""

from __future__ import annotations

from types import ModuleType

from xbridge._core.dtypes import DTYPES
from xbridge.errors import shown

_DEVICES = ("cpu", "cuda", "gpu", "meta", "mps", "rocm", "tpu", "xpu")
"""Kinds of devices, in a string that is neither a dtype nor a library."""


def option_of(value: object, words: list[str]) -> str:
    """Return the option that a value is for; "" if none."""
    text = text_of(value).strip("'")
    if text in ("allow", "warn", "raise"):
        word = "copies"
    elif text in DTYPES:
        word = "dtype"
    elif isinstance(value, bool):
        word = "copy" if "copy" in words else "foreign"
    elif isinstance(value, int):
        word = "depth"  # it may be a device, which not every library has
    elif text.partition(":")[0] in _DEVICES:
        word = "device"
    elif isinstance(value, (str, ModuleType)):
        word = "backend"
    else:
        word = "like"
    return word if word in words else ""


def text_of(value: object) -> str:
    """Write a value: a dtype or a device of a library by its name, an array as `y`."""
    word = shown(value, lambda x: str(getattr(x, "__name__", x)))
    if issubclass(type(value), ModuleType):  # a proxy may raise
        return repr(word.partition(".")[0])
    if type(value).__name__ in ("function", "builtin_function_or_method", "ufunc"):
        return word if word.isidentifier() else "f"
    if any(value is number for number in (bool, int, float, complex)):  # a class may have no hash
        return word
    word = word.rpartition(".")[2]
    if word in DTYPES or (type(value).__name__ == "device" and word.partition(":")[0] in _DEVICES):
        return repr(word)
    return "y" if hasattr(value, "shape") and not issubclass(type(value), type) else shown(value)
