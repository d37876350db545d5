"""Which leaves of a tree are converted, and the function that converts them all in one call."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES
from xbridge._core.literals import NUMBERS
from xbridge._engine import verbs
from xbridge._engine.convert import call_untraced, convert, each, in_groups, plan
from xbridge._engine.repeat import compose
from xbridge._engine.source import import_for, resolve_source
from xbridge._host.exporters import has_attribute
from xbridge._host.importers import is_exporter
from xbridge._host.memory import as_readonly
from xbridge._plan.options import CallOptions, find_converter, read_options
from xbridge._plan.rules import destination
from xbridge._plan.steps import Options
from xbridge._registry.call_cache import decline, lookup_direct
from xbridge._registry.registry import are_arrays, backend_for, get, known_backends
from xbridge.backends import HOST
from xbridge.errors import (
    FOREIGN_ERRORS,
    Chained,
    DTypeError,
    OptionError,
    UnknownBackendError,
    UnsupportedArrayError,
    XBridgeError,
    shown,
    type_of,
)
from xbridge.tree.containers import PLAIN_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from xbridge._core.protocol import Array, ArrayFn, Backend
    from xbridge._engine.repeat import Convert
    from xbridge._engine.source import Source

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
    only: Any = None
    """The libraries whose arrays are converted, as a set of names once checked; None for all."""
    unsupported: str = "raise"
    """What becomes of arrays that the target cannot have: "raise" or "keep"."""
    movables: bool = False
    """True for objects of other classes with a method `to` too."""

    def check(self, *, may_ask: bool = False) -> Self:
        """Return these leaves; raise for an invalid option. Without `may_ask`, None means False."""
        if self.scalars not in (True, False, "python"):
            action, reason = f"take scalars={shown(self.scalars)}", "it is True, False or 'python'"
            raise OptionError.build(action, reason, "scalars='python'")
        if self.unsupported not in ("raise", "keep"):
            action = f"take unsupported={shown(self.unsupported)}"
            raise OptionError.build(action, "it is 'raise' or 'keep'", "unsupported='keep'")
        for word, value in (("movables", self.movables), ("exporters", self.exporters)):
            if value is not None and not (isinstance(value, Hashable) and value in {True, False}):
                raise OptionError.build(f"take {word}={shown(value)}", "it is True or False", f"{word}=True")
        checked = self._replace(
            scalars=self.scalars if self.scalars == "python" else bool(self.scalars),
            exporters=None if may_ask and self.exporters is self.only is None else bool(self.exporters),
        )
        if self.only is None:
            return checked
        is_one = isinstance(self.only, (str, ModuleType)) or not hasattr(type(self.only), "__iter__")
        names: Any = (self.only,) if is_one else self.only
        try:
            libraries = {name if name in known_backends() else get(name).name for name in names}
        except UnknownBackendError as error:
            hint = "only='torch'" if "=" in error.hint else error.hint and f"only={error.hint}"
            raise error.build(f"take only={shown(self.only)}", error.reason, hint) from error
        return checked._replace(only=libraries)

    def take(self, x: object) -> bool:
        """Return True if a leaf is converted. Objects of a class without a backend are not."""
        cls = type(x)
        if cls in PLAIN_TYPES:
            return self.scalars is True and cls in NUMBERS
        owner = backend_for(cls)
        if owner is None:
            return (self.movables and is_movable(x)) or (self.exporters is not False and is_exporter(x))
        return are_arrays(cls) and (self.only is None or owner.name in self.only)


def is_text(x: Any) -> bool:
    """Return True if an array holds text, or nothing at all as JAX's `float0`, so that it stays as it is."""
    try:
        dtype = getattr(x, "dtype", None)
        kind = getattr(dtype, "kind", "")
        if kind == "O":
            items = list(getattr(x, "flat", ()))
            return bool(items) and all(isinstance(item, (str, bytes)) for item in items)
        return kind in _TEXT or (kind == "V" and getattr(dtype, "itemsize", 1) == 0)
    except FOREIGN_ERRORS:  # the object cannot report its dtype
        return False


def leaf_converter(target: Backend, options: CallOptions, leaves: Leaves) -> ArrayFn:
    """Return a function that converts leaves of any types together. The options must have been checked.

    An array of text is returned as it is.
    """
    checked, keeps = read_options((target,), options), leaves.unsupported == "keep"
    make: Callable[[Any], Any] = partial(
        verbs.make_array, name=target.name, options=options._replace(writable=None)
    )
    if options.writable is False:
        make = compose(make, as_readonly)
    device = options.device
    if leaves.movables:  # an object has no names of devices such as "gpu", nor devices of other libraries
        named = str(destination(target, checked.device, CPU))
        device = named if target.device_name(device) is None else device

    def convert_other(x: Any, checked: Options) -> Any:
        if type(x) in NUMBERS:
            return make(x)
        if leaves.movables and is_movable(x):
            return _move(x, device)
        return _keep(x, checked, target=target, keeps=keeps)

    def convert(xs: list[Any]) -> list[Array]:
        return each(xs, target, checked, otherwise=convert_other)

    return partial(_convert_and_list, target, convert, keeps=keeps) if leaves.scalars == "python" else convert


def converter_finder(target: Backend, options: CallOptions, leaves: Leaves) -> Callable[[type], Convert]:
    """Return the function that finds how leaves of a type are converted at once, as in an earlier call."""
    checked = read_options((target,), options)

    def find(cls: type) -> Convert:
        if leaves.scalars == "python":
            return decline  # they are listed together
        if cls in NUMBERS:
            found = options._replace(writable=None).lookup("asarray", target.name, cls, type(None))
            return compose(found, as_readonly) if options.writable is False else found
        source = backend_for(cls)
        if source is None or checked.device not in (None, CPU):
            return decline  # arrays are moved to a device together
        if target.name == HOST and checked == Options() and source.transfers.has_packs:
            return lookup_direct(HOST, cls)  # arrays on a device are fetched together
        return find_converter(checked, target.name, cls)

    return find


def _keep(x: Any, options: Options, *, target: Backend, keeps: bool) -> Any:
    """Return a leaf that stays as it is, or the result for an exporter; None to have it planned with others.

    Arrays of text stay, and with `keeps` also objects that the target cannot have. To find out whether it can
    have an exporter, its memory has been exported, so it is converted here.
    """
    if is_text(x):
        return x
    if not keeps:
        return None
    source = resolve_source(x)

    def convert_if_supported(source: Source, target: Backend, options: Options) -> Any:
        try:
            found = import_for(source, target, options)
            plan(found, target, options)
        except (DTypeError, UnsupportedArrayError):
            return x
        except XBridgeError:  # the conversion raises it too
            return None
        return None if found is source else convert(found, target, options)

    return call_untraced(convert_if_supported, source, [source.backend], target, options)


def is_movable(x: object) -> bool:
    """Return True if an object that no backend owns has a method `to`."""
    return backend_for(type(x)) is None and has_attribute(x, "to") and callable(getattr(x, "to", None))


def _move(x: Any, device: object) -> Any:
    def failed(error: Exception) -> UnsupportedArrayError:
        return UnsupportedArrayError.build(f"move {type_of(x)}", f"its method `to` failed with {error!r}")

    with Chained(failed):
        moved = x.to(device)
    if moved is None:
        raise UnsupportedArrayError.build(f"move {type_of(x)}", "its method `to` returned None")
    return moved


def _convert_and_list(target: Backend, convert: ArrayFn, xs: list[Any], *, keeps: bool) -> list[Any]:
    """Convert arrays, and turn those without axes into Python numbers, all by one transfer to the host."""
    made: list[Any] = convert(xs)
    host = get(HOST)

    def list_part(are_single: bool, part: list[Any]) -> list[Any]:  # noqa: FBT001 -- a group
        if are_single:
            views = each(part, host, Options(), otherwise=partial(_keep, target=host, keeps=keeps))
            for i, view in enumerate(views):
                if (
                    type(view) in host.fast.types and host.dtype_of(view) in DTYPES
                ):  # dates, for example, stay
                    part[i] = view.tolist()
        return part

    return in_groups([backend_for(type(y)) is target and y.ndim == 0 for y in made], made, list_part)
