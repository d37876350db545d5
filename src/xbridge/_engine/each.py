"""Convert each of several inputs: by a cached converter of its type, and the rest together by plans.

This is the one road for all calls with several arrays. `align` chooses a target first, a tree is flattened
first and built again, the arrays of a list are stacked afterwards, and a function is called with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from xbridge._core.devices import CPU
from xbridge._core.protocol import Array, Backend
from xbridge._engine.convert import convert_all
from xbridge._engine.execute import call_untraced
from xbridge._engine.source import Source, mapped_dtype, resolve_source
from xbridge._plan.options import find_converter
from xbridge._plan.rules import destination
from xbridge._plan.steps import Options
from xbridge._registry import registry
from xbridge._registry.call_cache import decline
from xbridge._registry.registry import backend_for, get
from xbridge.backends import HOST
from xbridge.errors import DeviceError, XBridgeError, index_errors

Convert = Callable[[Any], Any]
Move = Callable[[list[Any]], list[Any] | None]

K = TypeVar("K")
T = TypeVar("T")


def each(
    xs: list[Any],
    target: Backend,
    options: Options,
    version: int | None,
    *,
    otherwise: Callable[[Any, Options], Any] | None = None,
) -> list[Array]:
    """Convert arrays, scalars and exporters, each as `to_backend` would. An error has the index of its input.

    `version` is that of the cache before the inputs were resolved; with None, nothing is cached. `otherwise`
    converts an input that no cached call has converted, or returns None to have it planned.
    """
    if options.by_dtype:

        def convert_part(dtype: str | None, part: list[Any]) -> list[Array]:
            mapped = options._replace(dtype=dtype, by_dtype=())
            return each(part, target, mapped, version, otherwise=otherwise)

        return in_groups([mapped_dtype(resolve_source(x), target, options) for x in xs], xs, convert_part)
    # The fastest way that suits comes first: one call of C code for all arrays, packs for those that change
    # their device, a cached call for each, and a plan for the rest.
    converters = {cls: find_converter(options, target.name, cls) for cls in set(map(type, xs))}
    many = target.fast.from_numpy_many
    if many and set(converters.values()) == {target.fast.from_numpy}:
        ys = many(xs)
        if ys is not None:
            return ys
    done: list[Any] = _move_in_packs(target, xs, converters, options)
    done = [converters[type(x)](x) if y is None else y for x, y in zip(xs, done, strict=True)]
    if otherwise:
        _fill_gaps(done, xs, lambda rest: list(index_errors(otherwise(x, options) for x in rest)))
    _fill_gaps(done, xs, lambda rest: _convert_planned(rest, target, options, version))
    return done


def _fill_gaps(done: list[Any], xs: list[Any], convert: Callable[[list[Any]], list[Any]]) -> None:
    """Convert the inputs without a result together, and enter what is returned for them."""
    gaps = [i for i, y in enumerate(done) if y is None]
    if gaps:
        try:
            ys = convert([xs[i] for i in gaps])
        except XBridgeError as error:
            error.remap_index(gaps)
            raise
        for i, y in zip(gaps, ys, strict=True):
            done[i] = y


def make_by_dtype(make: Callable[[Options], Array], target: Backend, options: Options) -> Array:
    """Make an array of numbers, and cast it if the call maps its dtype."""
    if not options.by_dtype:
        return make(options)
    y = make(options._replace(by_dtype=(), requires_grad=False))
    return each([y], target, options, None)[0]


def _convert_planned(xs: list[Any], target: Backend, options: Options, version: int | None) -> list[Array]:
    """Convert inputs by plans, those of the target and those of other libraries by themselves."""
    sources = [resolve_source(x) for x in xs]

    def convert_part(_: bool, part: list[Source]) -> list[Array]:  # noqa: FBT001 -- a group
        owners = list(dict.fromkeys(source.backend for source in part))
        return call_untraced(partial(convert_all, version=version), part, owners, target, options)

    # The target's own arrays come first: what is refused of them is, before others are computed or moved.
    return in_groups([source.backend is target for source in sources], sources, convert_part, first=True)


def _find_packing(target: Backend, kind: type, options: Options) -> Move | None:
    """Return the function that moves arrays of a type in packs; None if plans would do more than move them.

    It returns None in place of each array that has to be planned, or None if all have to be.
    """
    source, device = backend_for(kind), options.device
    end = target if source and source.name == HOST else source
    plain = options._replace(device=None, copy=None) == Options() and options.copy is not False
    if end is None or not (plain and end.transfers.has_packs) or registry.observers or target.is_tracing():
        return None
    if target.name == HOST:
        return end.transfers.fetch_many if device in (None, CPU) and kind in end.fast.types else None
    is_sent = end is target and kind in get(HOST).array_types
    if not is_sent or (device is None and "host" not in target.gaps):
        return None
    try:
        place = destination(target, device, CPU)
    except DeviceError:  # the plan of an array raises it too, and names the array
        return None
    if place == CPU or place not in target.devices():
        return None
    return lambda xs: target.transfers.send_many(xs, place)


def _move_in_packs(
    target: Backend, xs: list[Array], kinds: Iterable[type], options: Options
) -> list[Array | None]:
    """Move arrays in packs; return None in place of each array that has to be planned."""
    moves = {kind: _find_packing(target, kind, options) for kind in kinds} if len(xs) > 1 else {}
    if not any(moves.values()):
        return [None] * len(xs)
    if len(moves) == 1:  # as nearly always
        (move_all,) = moves.values()
        return (move_all and move_all(xs)) or [None] * len(xs)

    def move_part(kind: type, part: list[Array]) -> list[Array | None]:
        move = moves[kind]
        return (move and move(part)) or [None] * len(part)

    return in_groups(list(map(type, xs)), xs, move_part)


def in_groups(
    keys: list[K], xs: list[T], convert: Callable[[K, list[T]], list[Any]], *, first: K | None = None
) -> list[Any]:
    """Convert the inputs of each key together, and return all results in the order of the inputs.

    The inputs of the key `first` are converted first. An error has the index among all inputs.
    """
    groups: dict[K, list[int]] = {} if first is None else {first: []}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    done: dict[int, Any] = {}
    for key, at in groups.items():
        if at:
            try:
                done.update(zip(at, convert(key, [xs[i] for i in at]), strict=True))
            except XBridgeError as error:
                error.remap_index(at)
                raise
    return [done[i] for i in range(len(xs))]


class Converters(dict[type, "Convert | None"]):
    """The converter for the inputs of each type, found at first use by a function."""

    def __init__(self, find: Callable[[type], Convert | None]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, cls: type) -> Convert | None:
        found = self._find(cls)
        if found is not decline:  # a later call may have cached a conversion
            self[cls] = found
        return found


def convert_by_type(converters: Mapping[type, Convert]) -> Callable[[Iterable[Any]], tuple[Any, ...] | None]:
    """Return the function that converts inputs, each by the converter of its type; None if one declines."""

    def convert_each(xs: Iterable[Any]) -> tuple[Any, ...] | None:
        ys = []
        for x in xs:
            y = converters[type(x)](x)
            if y is None:
                return None
            ys.append(y)
        return tuple(ys)

    return convert_each


def unless_followed(follows: Callable[[Array], bool], convert: Convert) -> Convert:
    """Return the converter of arrays that decide where results go if autograd or a transform follows them."""

    def convert_unfollowed(x: Array) -> Array | None:
        return None if follows(x) else convert(x)

    return convert_unfollowed


def with_like(convert: Callable[[T], Any], source: Source | None) -> Callable[[T, Array], Any]:
    """Return a cached call with the argument `like`. This is `source` if the call took the device from it."""
    device_of = source and source.backend.device_of

    def convert_like(x: T, like: Array) -> Any:
        device = device_of(like) if device_of else CPU
        return convert(x) if device is CPU or device == CPU else None

    return convert_like
