"""Correct a call that does not fit the parameters of a function: the message has the call to type instead."""

from __future__ import annotations

from difflib import get_close_matches
from inspect import Parameter, signature
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge._core.wording import option_of, text_of
from xbridge.errors import CallError

if TYPE_CHECKING:
    from collections.abc import Callable

_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)

_SYNONYMS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("dev", "map_location"), ("device",)),
    **dict.fromkeys(("to", "target", "xp", "library", "namespace"), ("backend",)),
    **dict.fromkeys(("backward", "derivative", "gradient_fn", "custom_vjp"), ("vjp",)),
    **dict.fromkeys(("dtype", "cast"), ("casts",)),
    **dict.fromkeys(("device", "move", "moves"), ("transfers",)),
    **dict.fromkeys(("detach", "no_grad", "stop_gradient"), ("grad", "detach")),
    **dict.fromkeys(("keep_grad", "keep_graph"), ("grad", "keep")),
    **dict.fromkeys(("readonly", "read_only"), ("writable", False)),
    **dict.fromkeys(("share", "zero_copy_only"), ("copy", False)),
    **{kind: ("device", kind) for kind in ("cpu", "cuda", "gpu")},
}
"""Names that other libraries use for an option, or for one value of it that True asks for."""

_OF_TREES = "xbridge.tree."
_BESIDE = "a transfer runs beside the program, and pins memory itself"
_ELSEWHERE = {
    "requires_grad": ("it makes a new leaf", "asarray(x, backend={target}, requires_grad={value})"),
    "like": ("a conversion has one target", "asarray(x, like=y)"),
    "backend": ("its name is that of its target", "{of}to_backend(x, {value}{options})"),
    "device": ("NumPy's arrays are in host memory", "{call}"),
    "writable": ("only NumPy has read-only arrays", "{of}to_numpy(x, writable={value})"),
    "force": ("every conversion detaches and moves as far as it must", "{call}"),
    "pin_memory": (_BESIDE, "transfer(x, {target}{options})"),
    "non_blocking": (_BESIDE, "transfer(x, {target}{options})"),
}
"""Options that a conversion lacks: the reason, and the call that does what they are for."""
_OF_ONE_ARRAY = ("requires_grad", "like")
"""Options that no function of trees has in their stead."""
_OF_SOME = ("order", "writable", "movables")
"""Options that not every target has, nor a transfer, so the call to type leaves them out."""


class _Call(NamedTuple):
    """A call that does not fit."""

    name: str
    start: list[str]
    """The arguments by position that the call to type has."""
    words: list[str]
    """The options that the function has."""
    options: dict[str, object]
    """Those that the call gives."""

    @property
    def target(self) -> str:
        """Return the target of a conversion of one array or tree, as an argument; "" for another function."""
        verb = self.name.removeprefix(_OF_TREES)
        if verb in ("to_backend", "unsafe_share"):
            return self.start[1]
        is_fixed = verb.startswith("to_") and verb != "to_list"
        return repr(verb.removeprefix("to_")) if is_fixed else ""

    @property
    def is_of_trees(self) -> bool:
        """Return True for a function of trees."""
        return self.name.startswith(_OF_TREES)

    def written(self, **changed: object) -> str:
        """Write the call with its options, and with changed ones."""
        options = [f"{word}={text_of(value)}" for word, value in (self.options | changed).items()]
        return f"{self.name}({', '.join([*self.start, *options])})"

    def error(self, action: str, reason: str, **changed: object) -> CallError:
        """Return the error whose hint is the call, with changed options."""
        return CallError.build(action, reason, self.written(**changed))


def explain_call(
    fn: Callable[..., object], args: tuple[object, ...], options: dict[str, object]
) -> CallError:
    """Return the error for a call that does not fit the parameters of a function."""
    parameters = {word: one for word, one in signature(fn).parameters.items() if word != "self"}
    given = args[len(signature(fn).parameters) - len(parameters) :]
    places = [word for word, one in parameters.items() if one.kind < Parameter.VAR_POSITIONAL]
    needed = [word for word in places if parameters[word].default is Parameter.empty]
    known = [word for word, one in parameters.items() if one.kind in _BY_NAME]
    name = fn.__qualname__.removesuffix(".__init__").replace("Restore.__call__", "restore")
    if "." not in fn.__qualname__ and fn.__module__.split(".")[1:2] == ["tree"]:
        name = f"{_OF_TREES}{name}"
    start = [_argument(word, given[i : i + 1], options) for i, word in enumerate(needed)]
    takes_any = any(one.kind is Parameter.VAR_POSITIONAL for one in parameters.values())
    if takes_any and not places:
        start = ["*xs"]
    elif name in ("aligned", "explain") and given and callable(given[0]):
        start = ["fn", "x"][: len(needed) or 1]
    words = [word for word in known if word not in needed]
    asked = [word for word in words if word in options]
    changed = {word: options[word] for word in asked if options[word] is not parameters[word].default}
    call = _Call(name, start, words, changed)
    if not takes_any and len(given) > len(places):
        return _explain_position(call, given[len(places) :])
    unknown = [word for word in options if word not in known]
    absent = [word for word in needed[len(given) :] if word not in options]
    if unknown and (given or not absent):
        return _explain_keyword(call, unknown[0], options[unknown[0]])
    return call.error(f"call {name} without {absent[0]}", f"it needs {' and '.join(absent)}")


def _argument(place: str, given: tuple[object, ...], options: dict[str, object]) -> str:
    """Write an argument of the call to type: an array is called `x`."""
    if place in ("backend", "name"):
        name = given[0] if given else options.get("backend")
        return text_of(name) if isinstance(name, (str, ModuleType)) else "'torch'"
    return {"b": "y"}.get(place, place if place in ("fn", "module") else "x")


def _explain_position(call: _Call, surplus: tuple[object, ...]) -> CallError:
    text = text_of(surplus[0])
    if call.target and not call.is_of_trees and text == "y":
        hint = f"align(x, y, backend={call.target})"
        return CallError.build("take y by position", f"{call.name} converts one array", hint)
    meant = {word: value for value in surplus if (word := option_of(value, call.words))}
    reason = f"{call.name} takes its options by keyword" if call.words else f"{call.name} has no options"
    if call.is_of_trees and not meant:
        reason = f"{call.name} takes one tree"
    return call.error(f"take {text} by position", reason, **meant)


def _explain_keyword(call: _Call, word: str, value: object) -> CallError:
    action, reason = f"take {word}={text_of(value)}", f"{call.name} has no such option"
    meant, *values = _SYNONYMS.get(word, (word,))
    if values and value is True:  # a switch
        word, value = meant, values[0]
    elif not values and meant in call.words:
        word = meant
    if word in call.words:
        return call.error(action, reason, **{word: value})
    is_known = word in _ELSEWHERE and not (call.is_of_trees and word in _OF_ONE_ARRAY)
    if call.target and is_known:
        reason, hint = _ELSEWHERE[word]
        kept = {option: text_of(given) for option, given in call.options.items() if option not in _OF_SOME}
        options = "".join(f", {option}={text}" for option, text in kept.items())
        written = {"call": call.written(), "target": call.target, "options": options, "value": text_of(value)}
        of = _OF_TREES if call.is_of_trees else ""
        return CallError.build(action, reason, hint.format(of=of, **written))
    near = get_close_matches(word, call.words, 1)
    if not near and isinstance(value, (str, type)):
        near = [option for option in ("copies", "dtype", "device") if option == option_of(value, call.words)]
    if not near and call.words:
        reason = f"the options of {call.name} are {', '.join(call.words)}"
    return call.error(action, reason, **dict.fromkeys(near, value))
