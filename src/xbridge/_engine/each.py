"""Convert each of several inputs: by a cached converter of its type, and the rest together by plans.

This is the one road for all calls with several arrays. `align` chooses a target first, a tree is flattened
first and built again, the arrays of a list are stacked afterwards, and a function is called with them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from xbridge._core.devices import CPU
from xbridge._engine.batch import convert_all, move_in_packs
from xbridge._engine.execute import call_untraced
from xbridge._engine.source import mapped_dtype, resolve_source
from xbridge._plan.options import find_converter
from xbridge._registry.call_cache import decline
from xbridge.errors import XBridgeError, index_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from xbridge._core.protocol import Array, Backend
    from xbridge._engine.source import Source
    from xbridge._plan.steps import Options

    Convert = Callable[[Any], Any]

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
        return _each_by_dtype(xs, target, options, version, otherwise)
    # The fastest way that suits comes first: one call of C code for all arrays, packs for those that change
    # their device, a cached call for each, and a plan for the rest.
    converters = {cls: find_converter(options, target.name, cls) for cls in set(map(type, xs))}
    many = target.fast.from_numpy_many
    if many and set(converters.values()) == {target.fast.from_numpy}:
        ys = many(xs)
        if ys is not None:
            return ys
    done: list[Any] = move_in_packs(target, xs, converters, options) or [None] * len(xs)
    done = [converters[type(x)](x) if y is None else y for x, y in zip(xs, done, strict=True)]
    if otherwise:
        others = (otherwise(x, options) if y is None else y for x, y in zip(xs, done, strict=True))
        done = list(index_errors(others))
    planned = [i for i, y in enumerate(done) if y is None]
    if planned:
        for i, y in zip(planned, _convert_planned(xs, planned, target, options, version), strict=True):
            done[i] = y
    return done


def _each_by_dtype(
    xs: list[Any],
    target: Backend,
    options: Options,
    version: int | None,
    otherwise: Callable[[Any, Options], Any] | None,
) -> list[Array]:
    """Convert the inputs of each dtype together, to the dtype that the call maps it to."""
    chosen: dict[str | None, list[int]] = {}
    for i, x in enumerate(xs):
        chosen.setdefault(mapped_dtype(resolve_source(x), target, options), []).append(i)
    done: list[Any] = [None] * len(xs)
    for dtype, part in chosen.items():
        try:
            ys = each(
                [xs[i] for i in part],
                target,
                options._replace(dtype=dtype, by_dtype=()),
                version,
                otherwise=otherwise,
            )
        except XBridgeError as error:
            if error.index is not None:
                error.remap_index(part)
            raise
        for i, y in zip(part, ys, strict=True):
            done[i] = y
    return done


def make_by_dtype(make: Callable[[Options], Array], target: Backend, options: Options) -> Array:
    """Make an array of numbers, and cast it if the call maps its dtype."""
    if not options.by_dtype:
        return make(options)
    y = make(options._replace(by_dtype=(), requires_grad=False))
    return each([y], target, options, None)[0]


def _convert_planned(
    xs: list[Any], chosen: list[int], target: Backend, options: Options, version: int | None
) -> list[Array]:
    """Convert the chosen inputs by plans, those of the target and those of other libraries by themselves."""
    sources = {i: resolve_source(xs[i]) for i in chosen}
    fn = partial(convert_all, version=version)
    done: dict[int, Array] = {}
    # The target's own arrays come first: what is refused of them is, before others are computed or moved.
    for own in sorted({source.backend is target for source in sources.values()}, reverse=True):
        part = [i for i, source in sources.items() if (source.backend is target) is own]
        owners = list(dict.fromkeys(sources[i].backend for i in part))
        try:
            ys = call_untraced(fn, [sources[i] for i in part], owners, target, options)
        except XBridgeError as error:
            error.remap_index(part)
            raise
        done.update(zip(part, ys, strict=True))
    return [done[i] for i in chosen]


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
