"""Convert the leaves of a tree that are arrays: by cached calls, in packs, or by plans, in this order."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from xbridge._core.devices import CPU
from xbridge._core.dtypes import UNNAMED
from xbridge._core.literals import NUMBERS
from xbridge._engine import verbs
from xbridge._engine.each import each
from xbridge._engine.source import resolve_source
from xbridge._plan.options import CallOptions, read_options
from xbridge._registry.call_cache import cache_version
from xbridge._registry.registry import are_arrays, backend_for
from xbridge.errors import Chained, DTypeError, XBridgeError, index_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.protocol import Array, ArrayFn, Backend
    from xbridge._plan.steps import Options

PLAIN_TYPES = (str, bytes, *NUMBERS, type(None))
"""Leaves of these types are not arrays in any library."""

_KINDS = {bool: "bool", int: "int", float: "float", complex: "complex"}
"""The categories of Python numbers, in the order in which their types are tried."""

_TEXT = frozenset("SUT")
"""NumPy's codes for the kinds of dtypes whose items are strings."""


class StructuralArray:
    """An array that is part of the structure of its container, such as the lengths of a packed sequence.

    It keeps its dtype in every conversion.
    """

    __slots__ = ("array", "instead", "on_host")

    def __init__(self, array: Array, *, on_host: bool, instead: str) -> None:
        self.array: Array = array
        self.on_host: bool = on_host
        self.instead: str = instead
        """The call to make instead if the target does not have its dtype."""


def is_converted(cls: type) -> bool:
    """Return True if leaves of a class are converted."""
    return are_arrays(cls) or cls is StructuralArray


def is_plain(cls: type) -> bool:
    """Return True if leaves of a class are numbers, text or None, including NumPy's subclasses of these."""
    return issubclass(cls, PLAIN_TYPES)


def is_text(x: Any) -> bool:
    """Return True if an array holds text, or nothing at all as JAX's `float0`, so that it stays as it is."""
    backend = backend_for(type(x))
    if backend is not None and type(x) in backend.fast.types:
        return _holds_text(x)
    with suppress(XBridgeError), Chained(lambda _: XBridgeError()):
        return _holds_text(x)
    return False  # the object cannot report its dtype


def _holds_text(x: Any) -> bool:
    """Return True if the dtype or each object in an array is text, or if its items have no bytes."""
    dtype = getattr(x, "dtype", None)
    kind = getattr(dtype, "kind", "")
    if kind == "O":
        items = list(getattr(x, "flat", ()))
        return bool(items) and all(isinstance(item, (str, bytes)) for item in items)
    return kind in _TEXT or (kind == "V" and getattr(dtype, "itemsize", 1) == 0)


def leaf_converter(target: Backend, options: CallOptions, *, later: bool = False) -> ArrayFn:
    """Return a function that converts arrays of any types.

    A structural array keeps its dtype, and an array of text is returned as it is. The options must have been
    checked. With `later`, the default dtypes are those of this moment.
    """
    checked = read_options((target,), options)
    if later and checked.dtype == "default":
        checked = checked._replace(defaults=default_dtypes(target))
    return partial(_convert, target, options, checked)


def number_converter(target: Backend, options: CallOptions, *, later: bool = False) -> Callable[[Any], Array]:
    """Return a function that converts Python numbers. With `later`, as for `leaf_converter`."""
    options = options._replace(writable=None)
    if not later or options.dtype not in (None, *UNNAMED):
        return partial(verbs.make_array, name=target.name, options=options)
    defaults = dict(default_dtypes(target))

    def convert(x: Any) -> Array:
        kind = next(word for cls, word in _KINDS.items() if isinstance(x, cls))
        return verbs.make_array(x, name=target.name, options=options._replace(dtype=defaults[kind]))

    return convert


def default_dtypes(target: Backend) -> tuple[tuple[str, str], ...]:
    """Return the default dtype of each category that a library has now."""
    return tuple((kind, target.default_dtype(kind, CPU)) for kind in _KINDS.values())


def _convert(target: Backend, options: CallOptions, checked: Options, xs: list[Any]) -> list[Array]:
    done = each(xs, target, checked, cache_version(), stays=_stays)
    if StructuralArray not in set(map(type, xs)):
        return done
    return list(
        index_errors(
            _convert_structural(y, target.name, options) if type(y) is StructuralArray else y for y in done
        )
    )


def _stays(x: Any) -> bool:
    """Return True for leaves that are no arrays to convert: text, and structural arrays, which come later."""
    return type(x) is StructuralArray or is_text(x)


def _convert_structural(structural: StructuralArray, name: str, options: CallOptions) -> Array:
    device = "cpu" if structural.on_host else options.device
    try:
        return verbs.to_backend(
            structural.array, name, options._replace(dtype=None, device=device, writable=None)
        )
    except DTypeError as error:
        raise DTypeError.build(
            f"convert the form of a container to {name}",
            f"its dtype must stay, and {name} has no {resolve_source(structural.array).info().dtype} here",
            structural.instead,
        ) from error
