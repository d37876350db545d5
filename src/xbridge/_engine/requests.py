"""Recognize mistaken calls: arguments in the wrong order, and inputs that belong to another function."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from xbridge._core.dtypes import DTYPES
from xbridge._core.mistakes import option_of, text_of
from xbridge._engine.source import resolve_source
from xbridge._host.advice import hint_for_object, literal_error
from xbridge._host.sequences import is_literal
from xbridge._registry.registry import backend_for, get, known_backends
from xbridge.errors import OptionError, UnknownBackendError, UnsupportedArrayError, shown, type_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge._core.protocol import Backend
    from xbridge._engine.source import Source


def resolve_request(x: object, name: str | ModuleType, verb: str = "to_backend") -> tuple[Backend, Source]:
    """Return the target and the source of a conversion, or raise an error that corrects the call."""
    refuse_order(x, name, verb)
    target, source = get(name), resolve_source(x)
    if source.is_literal() and not hasattr(type(x), "_fields"):
        raise literal_error(x, target.name)
    return target, source


def refuse_order(x: object, name: object, verb: str) -> None:
    """Raise an error if the name of the backend comes before the array, or a dtype stands in its place."""
    if isinstance(name, (str, ModuleType)):
        return
    if type(x) is str and x in known_backends():
        reason = "the array comes first, and the name of a backend after it"
        raise UnknownBackendError.build(f"find a backend by {type_of(name)}", reason, f"{verb}(x, {x!r})")
    module, _, word = str(name).removeprefix("<class '").removesuffix("'>").rpartition(".")
    if module in known_backends() and word in DTYPES:
        raise UnknownBackendError.build(
            f"find a backend by {shown(name)}", "it is a dtype", f"{verb}(x, {module!r}, dtype={word!r})"
        )


def ownerless_error(x: object) -> UnsupportedArrayError:
    """Return the error for a question about an array that was asked of something else."""
    hint = "asarray(x)" if is_literal(x) else hint_for_object(x)
    action, reason = f"name the backend of {type_of(x)}", "it is not an array of a known library"
    return UnsupportedArrayError.build(action, reason, hint)


def refuse_alignment(xs: Sequence[object]) -> None:
    """Raise an error if all arrays are in one list, or an option is among them."""
    first: Any = xs[0] if len(xs) == 1 else None
    if type(first) in (list, tuple):
        kinds = set(map(type, first))
        if kinds and all(backend_for(kind) for kind in kinds):
            reason = "each argument is aligned as one array, and this one would be stacked"
            raise OptionError.build(f"align {type_of(first)} of arrays", reason, "align(*xs)")
    for i, x in enumerate(xs):
        if issubclass(type(x), (str, ModuleType)):  # a proxy may raise
            word, text = option_of(x, ["backend", "device", "dtype"]), text_of(x)
            if word != "backend" or text.strip("'") in known_backends():
                raise OptionError.build(
                    f"align {text} at xs[{i}]", f"a {word} is an option", f"{word}={text}"
                )
