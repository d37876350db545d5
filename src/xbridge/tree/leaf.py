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
from xbridge._plan.options import CallOptions, read_options
from xbridge._registry.call_cache import cache_version
from xbridge._registry.registry import backend_for
from xbridge.errors import Chained, XBridgeError

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

    An array of text is returned as it is. The options must have been checked. With `later`, the default
    dtypes are those of this moment.
    """
    checked = read_options((target,), options)
    if later and checked.dtype == "default":
        checked = checked._replace(defaults=default_dtypes(target))
    return partial(_convert, target, checked)


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


def _convert(target: Backend, checked: Options, xs: list[Any]) -> list[Array]:
    return each(xs, target, checked, cache_version(), stays=is_text)
