"""Recognize mistaken calls: arguments in the wrong order, and inputs that belong to another function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from types import ModuleType
from typing import Any

from xbridge._core.literals import SEQUENCES
from xbridge._core.wording import option_of, text_of
from xbridge._engine.source import Source, import_source, resolve_source
from xbridge._host.advice import hint_for_object, literal_error
from xbridge._host.exporters.generic import has_attribute
from xbridge._host.importers import PROTOCOLS, is_exporter
from xbridge._host.sequences import is_literal
from xbridge._registry.call_cache import store
from xbridge._registry.registry import backend_for, get, known_backends
from xbridge.errors import OptionError, UnknownBackendError, UnsupportedArrayError, type_of


def resolve_request(x: object, name: str | ModuleType, verb: str = "to_backend") -> Source:
    """Return the source of a conversion, or raise an error that corrects the call."""
    refuse_order(x, name, verb)
    source = resolve_source(x)
    if source.is_literal() and not hasattr(type(x), "_fields"):
        raise literal_error(x, get(name).name)
    return source


def resolve_like(like: object) -> Source:
    """Resolve the argument `like`, which gives the backend and the device."""
    try:
        return import_source(resolve_source(like))
    except UnsupportedArrayError as error:
        given: Any = like
        word, hint = _option_for(like), "like=None"
        if word:
            hint = f"like=None, {word}={text_of(like)}"
        elif type(given) in (list, tuple) and given and backend_for(type(given[0])):
            hint = "like=y[0]"
        raise OptionError.build(f"take {type_of(like)} as like", "it is not an array", hint) from error


def refuse_order(x: object, name: object, verb: str) -> None:
    """Raise an error if the name of the backend comes before the array."""
    if type(x) is str and x in known_backends() and not isinstance(name, (str, ModuleType)):
        reason = "the array comes first, and the name of a backend after it"
        raise UnknownBackendError.build(f"find a backend by {type_of(name)}", reason, f"{verb}(x, {x!r})")


_ASKED = {
    "backend_of": "name the backend of",
    "dtype_of": "name the dtype of",
    "array_namespace": "find the namespace of",
}
"""What the functions that ask about an array do. The others find its device."""


def ownerless_error(x: Any, verb: str) -> UnsupportedArrayError:
    """Return the error for a question about an array that was asked of something else."""
    if type(x) in (list, tuple) and x and all(map(backend_for, map(type, x))):
        hint = f"{verb}(*x)" if verb == "array_namespace" else f"{verb}(x[0])"
    elif is_literal(x):
        hint = "asarray(x)"
    elif hasattr(type(x), "named_parameters"):  # a module of a neural network
        hint = f"{verb}(next(x.parameters()))"
    else:
        hint = f"{verb}(asarray(x))" if is_exporter(x) else hint_for_object(x)
    action = f"{_ASKED.get(verb, 'find the device of')} {type_of(x)}"
    return UnsupportedArrayError.build(action, "it is not an array of a known library", hint)


def cache_refusal(asked: str | ModuleType, x: object, error: UnsupportedArrayError, version: int) -> None:
    """Cache what is said of an object that is no array, for others of its type: programs ask in loops."""
    cls = type(x)
    said = error.action, error.reason, error.hint
    if issubclass(cls, (*SEQUENCES, dict, str, PurePath)) or is_exporter(x) or type_of(x) not in error.action:
        return  # it depends on the object itself

    def refuse(x: object) -> UnsupportedArrayError | None:
        # Its class may have got a protocol since.
        return None if has_attribute(x, *PROTOCOLS) else UnsupportedArrayError.build(*said)

    store(("refused", asked, cls), version, refuse)


def refuse_alignment(sources: Sequence[Source], verb: str = "align") -> None:
    """Raise an error if all arrays are in one list, or an option is among the inputs."""
    first: Any = sources[0].array if len(sources) == 1 else None
    if type(first) in (list, tuple):
        kinds = set(map(type, first))
        if kinds and all(backend_for(kind) for kind in kinds):
            reason = "each argument is aligned as one array, and this one would be stacked"
            raise OptionError.build(f"align {type_of(first)} of arrays", reason, f"{verb}(*xs)")
    if any(type(source.array) is dict for source in sources):
        hint = "xbridge.tree.align(*xs)" if verb == "align" else ""
        raise OptionError.build("align a dict", "it is a tree of arrays", hint)
    refuse_options([source.array for source in sources])


def refuse_options(xs: Sequence[object]) -> None:
    """Raise an error if an option is among arguments that are to be aligned."""
    for i, x in enumerate(xs):
        word = _option_for(x)
        if word:
            text = text_of(x)
            raise OptionError.build(f"align {text} at xs[{i}]", f"a {word} is an option", f"{word}={text}")


def _option_for(x: object) -> str:
    """Return the option that a name or an object is for, where an array was expected; "" if none."""
    cls = type(x)
    if cls in (list, tuple, dict):  # a compiler does not follow a method of their names
        return ""
    if not (issubclass(cls, (str, ModuleType, type)) or cls.__name__.lower().endswith(("device", "dtype"))):
        return ""  # it is not looked at, because a proxy may raise
    word = option_of(x, ["backend", "device", "dtype"])
    return word if word != "backend" or text_of(x).strip("'") in known_backends() else ""
