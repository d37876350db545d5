"""Correct a call that does not fit the parameters of a function: the message has the call to type instead."""

from __future__ import annotations

from inspect import Parameter, signature
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

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
    **dict.fromkeys(("backward", "derivative", "gradient_fn", "custom_vjp"), "vjp"),
    **dict.fromkeys(("dtype", "cast"), "casts"),
    **dict.fromkeys(("device", "move", "moves"), "transfers"),
    "copies": "copy",
}
"""Names that other libraries use for an option, where the most similar name would be a different option."""

_SWITCHES: dict[str, tuple[str, object]] = {
    **dict.fromkeys(("detach", "no_grad", "stop_gradient"), ("grad", "detach")),
    **dict.fromkeys(("keep_grad", "keep_graph"), ("grad", "keep")),
    **dict.fromkeys(("readonly", "read_only"), ("writable", False)),
    **{kind: ("device", kind) for kind in ("cpu", "cuda", "gpu")},
}
"""Switches of other libraries that are one value of an option here."""


class _Elsewhere(NamedTuple):
    """An option of other libraries' conversions: why there is none here, and the call that does the same."""

    reason: str
    hint: str = "{call}"
    target: str = ""
    """The library whose arrays the call is for; "" if it is for any."""


_SHAPE = "a conversion keeps the shape"
_ORDER = "a conversion keeps the order of the axes in memory"
_FILL = _Elsewhere("a conversion fills no value", "{name}(x.{fill}({value}){rest})")
_BESIDE = _Elsewhere("a transfer runs beside the program, and pins memory itself", "{beside}")
_LOADER = _Elsewhere(
    "it is an option of the data loader", "{name}(torch.utils.data.DataLoader({data}, {option}){rest})"
)
_ELSEWHERE = {
    "force": _Elsewhere("every conversion detaches and moves as far as it must"),
    "casting": _Elsewhere("dtype= alone asks for a cast"),
    "stream": _Elsewhere("a conversion runs on the current stream of each library"),
    "order": _Elsewhere(_ORDER, "{host}.copy({option})"),
    "memory_format": _Elsewhere(_ORDER, "{call}.contiguous({option})", "torch"),
    "shape": _Elsewhere(_SHAPE, "{call}.reshape({value})"),
    "ndmin": _Elsewhere(_SHAPE, "{name}(numpy.array({host}, {option}){rest})"),
    "axis": _Elsewhere(_SHAPE),
    "chunks": _Elsewhere("a conversion does not choose the chunks", "{call}.rechunk({value})", "dask"),
    "sharding": _Elsewhere(
        "a conversion is to one device, and JAX shards its result", "jax.device_put({call}, {value})", "jax"
    ),
    **dict.fromkeys(("na_value", "fill_value"), _FILL),
    **dict.fromkeys(("pin_memory", "non_blocking"), _BESIDE),
    **dict.fromkeys(("batch_size", "num_workers", "shuffle", "drop_last", "collate_fn"), _LOADER),
}


class _Call(NamedTuple):
    """A call that does not fit."""

    name: str
    given: tuple[object, ...]
    options: dict[str, object]
    start: list[str]
    """The arguments by position that the call to type has."""
    words: list[str]
    """The options that the function has."""

    @property
    def verb(self) -> str:
        """Return the name without that of the module."""
        return self.name.rpartition(".")[2]

    @property
    def target(self) -> str:
        """Return the library that the name of the function has; "" if it has none."""
        is_fixed = self.verb.startswith("to_") and self.verb not in ("to_backend", "to_list")
        return self.verb.removeprefix("to_") if is_fixed else ""

    @property
    def backend(self) -> str:
        """Return the target as an argument; "" if there is none."""
        return repr(self.target) if self.target else self.start[1] if len(self.start) > 1 else ""

    @property
    def known(self) -> dict[str, object]:
        """Return the options of the call that the function has."""
        return {word: value for word, value in self.options.items() if word in self.words}

    def written(self, **changed: object) -> str:
        """Write the call with its known options, and with changed ones."""
        chosen = (self.known | changed).items()
        words = [
            f"{word}={text_of(value)}" for word, value in chosen if word != "backend" or len(self.start) < 2
        ]
        return f"{self.name}({', '.join([*self.start, *words])})"

    def error(self, action: str, reason: str, **changed: object) -> CallError:
        """Return the error whose hint is the call, with changed options."""
        return CallError.build(action, reason, self.written(**changed))


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
    if name == "aligned" and given:
        start = ["fn"]
    if not places and Parameter.VAR_POSITIONAL in kinds:
        start = ["*xs"]
    call = _Call(name, given, options, start, words)
    if start != ["*xs"] and len(given) > len(places):
        has_options = Parameter.KEYWORD_ONLY in kinds
        reason = f"{name} takes its options by keyword" if has_options else f"{name} has no options"
        return _error_of_position(call, given[len(places) :], reason)
    for word in options:
        if word not in words:
            return _error_of_keyword(call, word)
    if name == "explain" and given and callable(given[0]):
        reason = "a call is planned for its arguments"
        return CallError.build("explain a function alone", reason, "explain(fn, x)")
    absent = [place.name for place in needed[len(given) :] if place.name not in options]
    return call.error(f"call {name} without {absent[0]}", f"it needs {' and '.join(absent)}")


def _argument(place: str, given: tuple[object, ...], options: dict[str, object]) -> str:
    """Write an argument of the call to type: an array is called `x`."""
    if place in ("backend", "name"):
        name = given[0] if given else options.get("backend")
        return repr(name) if isinstance(name, str) else "'torch'"
    return {"b": "y"}.get(place, place if place in ("fn", "module") else "x")


def _error_of_position(call: _Call, surplus: tuple[object, ...], reason: str) -> CallError:
    """Return the error for arguments by position that the function takes by keyword, or not at all."""
    first = surplus[0]
    text, hint = text_of(first), ""
    action = f"take {text} by position"
    if call.verb == "aligned" and text == "y":
        reason = "it takes a function, and returns the function that takes the arrays"
        hint = "align(*xs)" if text_of(call.given[0]) == "y" else f"{call.written()}(y)"
    elif call.verb == "map":
        reason, hint = "it maps one tree", "[fn(one, other) for one, other in zip(x, y)]"
    elif call.target == "dask" and (first == "auto" or type(first) in (int, tuple)):
        reason, hint = _ELSEWHERE["chunks"].reason, f"{call.written()}.rechunk({text})"
    elif text == "y" and (call.target or call.verb == "to_backend"):
        reason, hint = f"{call.name} converts one array", f"align(x, y, backend={call.backend})"
    if hint:
        return CallError.build(action, reason, hint)
    return call.error(
        action, reason, **{word: value for value in surplus if (word := option_of(value, call.words))}
    )


def _error_of_keyword(call: _Call, word: str) -> CallError:
    """Return the error for a keyword that the function does not have."""
    from difflib import get_close_matches  # noqa: PLC0415 -- 6 ms, and only an error needs it

    name, words, value = call.name, call.words, call.options[word]
    action, reason = f"take {word}={text_of(value)}", f"{name} has no such option"
    is_array = hasattr(value, "shape") or type(value) in (list, tuple)
    if call.start[:1] == ["x"] and not call.given and (is_array or word in ("x", "a", "obj", "tree")):
        return call.error(action, f"{name} takes the array by position")
    meant = _SWITCHES.get(word)
    if meant and value is True:
        word, value = meant
        if word in words:
            return call.error(action, reason, **{word: value})
    other = _find_other_call(call, word, value)
    if other:
        return CallError.build(action, *other)
    near = [_SYNONYMS[word]] if _SYNONYMS.get(word) in words else get_close_matches(word, words, 1)
    if not near and isinstance(value, (str, type)):
        near = [option for option in ("copies", "dtype", "device") if option == option_of(value, words)]
    if not near and call.verb == "map" and word != "is_leaf":
        hint = f"xbridge.tree.map(lambda leaf: fn(leaf, {word}={text_of(value)}), x)"
        return CallError.build(action, "the function gets the arrays alone", hint)
    if not near and call.verb == "aligned" and word in ("shape", "out_shape", "output_shape"):
        hint = f"{call.name}(fn, result=lambda *args: numpy.empty({text_of(value)}))"
        return CallError.build(action, "result= returns arrays of that shape and dtype", hint)
    if not near and call.verb == "aligned" and word in ("argnums", "argnames"):
        hint = f"jax.grad({call._replace(start=['fn']).written()}, {word}={text_of(value)})"
        return CallError.build(action, "the caller chooses what to differentiate", hint)
    if not near and words:
        reason = f"the options of {name} are {', '.join(words)}"
    return call.error(action, reason, **dict.fromkeys(near, value))


def _find_other_call(call: _Call, word: str, value: object) -> tuple[str, str] | None:
    """Return why a conversion does not have an option, and the call that does what it is for."""
    name, target, backend = call.name, call.target, call.backend
    is_conversion = call.verb.startswith("to_") or call.verb == "unsafe_share"
    if word == "requires_grad" and is_conversion and backend:
        return f"{name} has no such option", f"asarray(x, backend={backend}, requires_grad={text_of(value)})"
    if word == "like" and is_conversion:
        is_asked = target or len(call.given) == 2 or "backend" in call.options
        hint = f"asarray(x, backend={backend}, like=y)" if is_asked else "asarray(x, like=y)"
        return f"{name} has no such option", hint
    if word == "backend" and target:
        return f"{name} has one target", f"{name.replace(target, 'backend')}(x, {text_of(value)})"
    if word == "device" and target:
        return f"arrays of {target} are in host memory", f"{name}(x)"
    if word == "writable" and is_conversion:
        return "only NumPy has read-only arrays", f"to_numpy(x, writable={text_of(value)})"
    found = _ELSEWHERE.get(word) if "copy" in call.words and call.start[:1] == ["x"] else None
    if found is None:
        return None
    array = call.given[0] if call.given else None
    fill = "filled" if hasattr(array, "filled") else "fillna"
    if found is _LOADER:
        fits = call.verb == "prefetch"
    else:  # a handle, batches and trees are no arrays
        is_array = "." not in name and call.verb not in ("prefetch", "transfer")
        fits = found is _BESIDE or (is_array and found.target in ("", backend.strip("'")))
    template = found.hint if fits else "{call}"
    if word == "axis" and call.verb == "asarray":
        template = "numpy.moveaxis({host}, 0, {value})"
    if (word == "order" and value not in ("C", "F")) or (found is _FILL and not hasattr(array, fill)):
        template = "{call}"
    whole = call.written()
    place = f", device={text_of(call.known['device'])}" if "device" in call.known else ""
    return found.reason, template.format(
        call=whole,
        name=name,
        rest=whole.removeprefix(f"{name}(x").removesuffix(")"),
        host="asarray(x, backend='numpy')" if call.verb == "asarray" else "to_numpy(x)",
        beside=f"transfer(x, {backend}{place})" if is_conversion else whole,
        fill=fill,
        data="x.dataset" if hasattr(array, "dataset") else "x",
        value=text_of(value),
        option=f"{word}={text_of(value)}",
    )


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
    if type(value).__name__ in ("function", "builtin_function_or_method", "ufunc"):
        return word if word.isidentifier() else "f"
    if any(value is number for number in (bool, int, float, complex)):  # a class may have no hash
        return word
    word = word.rpartition(".")[2]
    if word in DTYPES or (type(value).__name__ == "device" and word.partition(":")[0] in _DEVICES):
        return repr(word)
    return "y" if hasattr(value, "shape") and not issubclass(type(value), type) else shown(value)
