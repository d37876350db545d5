"""Convert arrays that are leaves of a tree."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from xbridge._core.devices import CPU
from xbridge._core.literals import NUMBERS
from xbridge._engine import verbs
from xbridge._engine.source import resolve_source
from xbridge._plan.options import read_options
from xbridge._plan.steps import Options
from xbridge.backends._registry import are_arrays, backend_for, fast_converters
from xbridge.errors import Chained, DTypeError, XBridgeError, index_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from xbridge._core.protocol import Array, ArrayFn, Backend

PLAIN_TYPES = (str, bytes, *NUMBERS, type(None))
"""Leaves of these types are not arrays in any library."""

_TEXT = frozenset("SUT")
"""NumPy's codes for the kinds of dtypes whose items are strings."""


class Fixture:
    """An array that belongs to the form of its container, which needs its dtype."""

    __slots__ = ("array", "instead", "on_host")

    def __init__(self, array: Array, *, on_host: bool, instead: str) -> None:
        self.array: Array = array
        self.on_host: bool = on_host
        self.instead: str = instead
        """The call to make instead if the target does not have its dtype."""


def is_converted(cls: type) -> bool:
    """Return True if leaves of a class are converted."""
    return are_arrays(cls) or cls is Fixture


def is_text(x: Any) -> bool:
    """Return True if an array holds text, so that it stays as it is."""
    backend = backend_for(type(x))
    if backend is not None and backend.is_text is not None:
        return backend.is_text(x)
    if backend is not None and type(x) in backend.fast_types:
        return _kind_of(x) in _TEXT
    with suppress(XBridgeError), Chained(lambda _: XBridgeError()):
        return _kind_of(x) in _TEXT
    return False  # the object cannot report its dtype


def _kind_of(x: Any) -> Any:
    """Return NumPy's code for the kind of a dtype, if `x` has one."""
    return getattr(getattr(x, "dtype", None), "kind", "")


def leaf_converter(
    target: Backend, keywords: dict[str, Any], kinds: Collection[type] | None = None
) -> ArrayFn:
    """Return a function that converts arrays and fixtures of certain types, or of any types.

    A fixture keeps its dtype, and text stays as it is.
    """
    return partial(_convert, target, read_options((target,), **keywords), keywords, kinds)


def _convert(
    target: Backend,
    options: Options,
    keywords: dict[str, Any],
    kinds: Collection[type] | None,
    xs: list[Any],
) -> list[Array]:
    direct = {kind: _direct(kind, target, options) for kind in kinds or set(map(type, xs))}
    many = target.fast_from_numpy_many
    done = many(xs) if many and set(direct.values()) == {target.fast_from_numpy} else None
    if done is not None:
        return done
    made: list[Any] = []
    for x in xs:
        converter = direct[type(x)]
        made.append(x if is_text(x) else None if converter is None else converter(x))
    planned = [i for i, x in enumerate(xs) if made[i] is None and type(x) is not Fixture]
    try:
        found = verbs.to_backend_all([xs[i] for i in planned], target.name, **keywords) if planned else []
    except XBridgeError as error:
        error.remap_index(planned)
        raise
    for i, y in zip(planned, found, strict=True):
        made[i] = y
    return list(
        index_errors(
            _convert_fixture(x, target.name, keywords) if y is None else y
            for x, y in zip(xs, made, strict=True)
        )
    )


def _direct(kind: type, target: Backend, options: Options) -> Callable[[Array], Array | None] | None:
    """Return the function that converts plain arrays of a type without a plan, if only a device is requested.

    The function returns None if it cannot decide for an array.
    """
    converter, backend = fast_converters.get(target.name, {}).get(kind), backend_for(kind)
    if converter is None or backend is None or options != Options(options.device):
        return None
    if options.device is None or (backend.host_only and options.device == CPU):
        return converter
    if backend is not target:
        return None
    return lambda x: x if target.array_info(x).device == options.device else None


def _convert_fixture(fixture: Fixture, name: str, keywords: dict[str, Any]) -> Array:
    device = "cpu" if fixture.on_host else keywords["device"]
    try:
        return verbs.to_backend(fixture.array, name, **{**keywords, "dtype": None, "device": device})
    except DTypeError as error:
        raise DTypeError.build(
            f"convert the form of a container to {name}",
            f"its dtype must stay, and {name} has no {resolve_source(fixture.array).info().dtype} here",
            fixture.instead,
        ) from error
