"""Correct a call that does not fit the parameters of a function: the message has the call to type instead."""

from __future__ import annotations

from inspect import Parameter, signature
from types import ModuleType
from typing import TYPE_CHECKING

from xbridge._core.dtypes import DTYPES
from xbridge.errors import CallError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_KEYWORDS = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_DEVICES = ("cpu", "cuda", "gpu", "meta", "mps", "rocm", "tpu", "xpu")
"""Kinds of devices, in a string that is neither a dtype nor a library."""
_SYNONYMS = {
    "dev": "device",
    "map_location": "device",
    "to": "backend",
    "target": "backend",
    **dict.fromkeys(("xp", "library", "framework", "lib", "module", "namespace"), "backend"),
    **dict.fromkeys(("size", "prefetch_factor", "buffer_size"), "depth"),
    **dict.fromkeys(("grad", "gradient", "gradients"), "detaches"),
    "copies": "copy",
}
"""Names that other libraries use for an option, where the most similar name would be a different option."""


def explain_call(
    fn: Callable[..., object], args: tuple[object, ...], options: dict[str, object]
) -> CallError:
    """Return the error for a call that does not fit the parameters of a function."""
    parameters = [one for one in signature(fn).parameters.values() if one.name != "self"]
    given = args[len(signature(fn).parameters) - len(parameters) :]
    kinds = {one.kind for one in parameters}
    places = [one for one in parameters if one.kind in _POSITIONAL]
    needed = [place for place in places if place.default is Parameter.empty]
    words = [one.name for one in parameters if one.kind in _KEYWORDS]
    name = fn.__qualname__.removesuffix(".__init__").replace("Restore.__call__", "restore")
    if "." not in fn.__qualname__ and fn.__module__.split(".")[1:2] == ["tree"]:
        name = f"xbridge.tree.{name}"
    start = [_argument(place.name, given[i : i + 1], options) for i, place in enumerate(needed)]
    if not places and Parameter.VAR_POSITIONAL in kinds:
        start = ["*xs"]
    elif len(given) > len(places):
        surplus = given[len(places) :]
        chosen = {word: value for word, value in options.items() if word in words}
        chosen |= {word: value for value in surplus if (word := option_of(value, words))}
        has_options = Parameter.KEYWORD_ONLY in kinds
        reason = f"{name} takes its options by keyword" if has_options else f"{name} has no options"
        if text_of(surplus[0]) == "y" and name.startswith("to_") and name != "to_list":
            backend = start[1] if len(start) > 1 else repr(name.removeprefix("to_"))
            return CallError.build(
                "take y by position", f"{name} converts one array", f"align(x, y, backend={backend})"
            )
        return _error(f"take {text_of(surplus[0])} by position", reason, name, start, chosen)
    for word in options:
        if word not in words:
            asked = start[1] if len(start) == 2 and (len(given) == 2 or "backend" in options) else ""
            return _unknown(word, options, name, start, words, asked)
    absent = [place.name for place in needed[len(given) :] if place.name not in options]
    reason = f"it needs {' and '.join(absent)}"
    return _error(f"call {name} without {absent[0]}", reason, name, start, options)


def _argument(place: str, given: tuple[object, ...], options: dict[str, object]) -> str:
    """Write an argument of the call to type: an array is called `x`."""
    if place in ("backend", "name"):
        name = given[0] if given else options.get("backend")
        return repr(name) if isinstance(name, str) else "'torch'"
    return {"b": "y"}.get(place, place if place in ("fn", "module") else "x")


def _error(action: str, reason: str, name: str, start: list[str], options: dict[str, object]) -> CallError:
    words = [
        *start,
        *(
            f"{word}={text_of(value)}"
            for word, value in options.items()
            if word != "backend" or len(start) < 2
        ),
    ]
    return CallError.build(action, reason, f"{name}({', '.join(words)})")


def _unknown(
    word: str, options: dict[str, object], name: str, start: list[str], words: list[str], asked: str
) -> CallError:
    """Return the error for a keyword that the function does not have."""
    from difflib import get_close_matches  # noqa: PLC0415 -- 6 ms, and only an error needs it

    value = options[word]
    known = {one: value for one, value in options.items() if one in words}
    action, verb = f"take {word}={text_of(value)}", name.rpartition(".")[2]
    reason = f"{name} has no such option"
    target = (
        verb.removeprefix("to_") if verb.startswith("to_") and verb not in ("to_backend", "to_list") else ""
    )
    backend = repr(target) if target else start[1] if len(start) > 1 else ""
    is_conversion = verb.startswith("to_") or verb == "unsafe_share"
    hint = ""
    if word == "requires_grad" and is_conversion:
        hint = f"asarray(x, backend={backend}, requires_grad={text_of(value)})"
    elif word == "like" and is_conversion:
        hint = f"asarray(x, backend={backend}, like=y)" if target or asked else "asarray(x, like=y)"
    elif word == "force":
        reason, hint = "every conversion detaches and moves as far as it must", f"{name}({', '.join(start)})"
    elif word == "order" and value in ("C", "F"):
        reason, hint = (
            "a conversion keeps the order of the axes in memory",
            f"to_numpy(x).copy(order={value!r})",
        )
    elif word in ("pin_memory", "non_blocking") and backend:
        place = f", device={text_of(options['device'])}" if "device" in options else ""
        reason, hint = (
            "a transfer runs beside the program, and pins memory itself",
            f"transfer(x, {backend}{place})",
        )
    elif word == "backend" and target:
        reason, hint = f"{name} has one target", f"{name.replace(target, 'backend')}(x, {text_of(value)})"
    elif word == "device" and target:
        reason, hint = f"arrays of {target} are in host memory", f"{name}(x)"
    elif word == "writable" and is_conversion:
        reason, hint = "only NumPy has read-only arrays", f"to_numpy(x, writable={text_of(value)})"
    if hint:
        return CallError.build(action, reason, hint)
    if start and start[0] == "x" and word in ("x", "a", "obj", "tree", "array", "tensor", "iterable"):
        return _error(action, f"{name} takes the array by position", name, start, known)
    near = [_SYNONYMS[word]] if _SYNONYMS.get(word) in words else get_close_matches(word, words, 1)
    if not near and isinstance(value, (str, type)):
        near = [option for option in ("copies", "dtype", "device") if option == option_of(value, words)]
    if not near and words:
        reason = f"the options of {name} are {', '.join(words)}"
    return _error(action, reason, name, start, known | dict.fromkeys(near, value))


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
        word = "depth" if "depth" in words else "device"
    elif text.partition(":")[0] in _DEVICES:
        word = "device"
    elif isinstance(value, (str, ModuleType)):
        word = "backend"
    else:
        word = "like"
    return word if word in words else ""


def _name_of(value: object) -> str:
    return str(getattr(value, "__name__", value))


def text_of(value: object) -> str:
    """Write a value: a dtype or a device of a library by its name, an array as `y`."""
    word = shown(value, _name_of)
    if issubclass(type(value), ModuleType):  # a proxy may raise
        return repr(word.partition(".")[0])
    word = word.rpartition(".")[2]
    if word in DTYPES or (type(value).__name__ == "device" and word.partition(":")[0] in _DEVICES):
        return repr(word)
    return "y" if hasattr(value, "shape") and not issubclass(type(value), type) else shown(value)
