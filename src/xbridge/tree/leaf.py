"""Convert the leaves of a tree that are arrays: by cached calls, in packs, or by plans, in this order."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES, UNNAMED
from xbridge._core.literals import NUMBERS
from xbridge._engine import verbs
from xbridge._engine.convert import plan
from xbridge._engine.each import each
from xbridge._engine.execute import call_untraced
from xbridge._engine.source import import_for, mapped_dtype, resolve_source
from xbridge._plan.options import CallOptions, read_options
from xbridge._plan.steps import Options
from xbridge._registry.call_cache import cache_version
from xbridge._registry.registry import backend_for, get, known_backends
from xbridge.backends import HOST
from xbridge.errors import (
    Chained,
    DTypeError,
    OptionError,
    UnsupportedArrayError,
    XBridgeError,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from xbridge._core.protocol import Array, ArrayFn, Backend
    from xbridge._engine.source import Source

PLAIN_TYPES = (str, bytes, *NUMBERS, type(None))
"""Leaves of these types are not arrays in any library."""

_KINDS = {bool: "bool", int: "int", float: "float", complex: "complex"}
"""The categories of Python numbers, in the order in which their types are tried."""

_TEXT = frozenset("SUT")
"""NumPy's codes for the kinds of dtypes whose items are strings."""


Scalars: TypeAlias = "bool | Literal['python']"
Libraries: TypeAlias = "str | ModuleType | Iterable[str | ModuleType] | None"
Unsupported: TypeAlias = Literal["raise", "keep"]


class Leaves(NamedTuple):
    """Which leaves of a tree a call converts, as the user gave it."""

    scalars: bool | str = False
    """True for Python numbers too; "python" to turn arrays without axes into Python numbers."""
    exporters: bool | None = False
    """True for exporters of memory too; None if it is an error that the call does not say it."""
    only: object = None
    """The libraries whose arrays are converted; None for all."""
    unsupported: str = "raise"
    """What becomes of arrays that the target cannot have: "raise" or "keep"."""

    def check(self) -> Self:
        """Return these leaves; raise for an option with an invalid value."""
        if self.scalars not in (True, False, "python"):
            action, reason = f"take scalars={shown(self.scalars)}", "it is True, False or 'python'"
            raise OptionError.build(action, reason, "scalars='python'")
        if self.unsupported not in ("raise", "keep"):
            action = f"take unsupported={shown(self.unsupported)}"
            raise OptionError.build(action, "it is 'raise' or 'keep'", "unsupported='keep'")
        scalars = self.scalars if self.scalars == "python" else bool(self.scalars)
        return self._replace(scalars=scalars, only=self.libraries())

    def libraries(self) -> set[str] | None:
        """Return the names in `only`; None for all libraries."""
        if self.only is None:
            return None
        is_one = isinstance(self.only, (str, ModuleType)) or not hasattr(self.only, "__iter__")
        names: Iterable[Any] = (self.only,) if is_one else self.only  # type: ignore[assignment] # as asked
        return {name if name in known_backends() else get(name).name for name in names}


ARRAYS = Leaves()
"""The leaves that are converted if a call does not say it."""


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


def leaf_converter(
    target: Backend, options: CallOptions, leaves: Leaves = ARRAYS, *, later: bool = False
) -> ArrayFn:
    """Return a function that converts arrays of any types.

    An array of text is returned as it is. The options must have been checked. With `later`, the default
    dtypes are those of this moment.
    """
    checked = read_options((target,), options)
    if later and checked.dtype == "default":
        checked = checked._replace(defaults=default_dtypes(target))
    keeps = leaves.unsupported == "keep"
    convert = partial(_convert, target, checked, partial(_stays, target, checked) if keeps else is_text)
    if leaves.scalars != "python":
        return convert
    return partial(
        _convert_and_list, target, convert, partial(_stays, get(HOST), Options()) if keeps else is_text
    )


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


def _convert(target: Backend, checked: Options, stays: Callable[[Any], bool], xs: list[Any]) -> list[Array]:
    return each(xs, target, checked, cache_version(), stays=stays)


def _stays(target: Backend, options: Options, x: Any) -> bool:
    """Return True for an array of text, and for one that the target cannot have: its plan refuses it."""
    if is_text(x):
        return True
    source = resolve_source(x)
    try:
        call_untraced(_plan, source, [source.backend], target, options)
    except (DTypeError, UnsupportedArrayError):
        return True
    except XBridgeError:  # the conversion raises it too
        pass
    return False


def _plan(source: Source, target: Backend, options: Options) -> None:
    if options.by_dtype:
        options = options._replace(dtype=mapped_dtype(source, target, options), by_dtype=())
    plan(import_for(source, target, options), target, options)


def _convert_and_list(
    target: Backend, convert: ArrayFn, keeps: Callable[[Any], bool], xs: list[Any]
) -> list[Any]:
    """Convert arrays, and turn those without axes into Python numbers, all by one transfer to the host."""
    made: list[Any] = convert(xs)
    single = [i for i, y in enumerate(made) if backend_for(type(y)) is target and y.ndim == 0]
    host = get(HOST)
    try:
        views = _convert(host, Options(), keeps, [made[i] for i in single])
    except XBridgeError as error:
        if error.index is not None:
            error.remap_index(single)
        raise
    for i, view in zip(single, views, strict=True):
        if type(view) in host.fast.types and host.dtype_of(view) in DTYPES:  # dates, for example, stay
            made[i] = view.tolist()
    return made
