"""The public functions behind their fast path: resolve the inputs, read the options once, convert, cache.

Each function here has the name and the meaning of a public one. It runs if no cached call has a result.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from xbridge._core.devices import SHARDED
from xbridge._core.dtypes import DTYPES
from xbridge._core.tracing import none_in_traces
from xbridge._engine.convert import convert, list_values, plan_for_explain, share
from xbridge._engine.each import convert_by_type, each, make_by_dtype, unless_followed, with_like
from xbridge._engine.execute import call_untraced
from xbridge._engine.literals import choose_converter, literal_converter
from xbridge._engine.requests import refuse_alignment, resolve_request
from xbridge._engine.source import (
    TargetChoice,
    device_for,
    import_source,
    leading_index,
    mapped_dtype,
    resolve_like,
    resolve_source,
)
from xbridge._host.advice import aim
from xbridge._host.memory import overlap, overlap_of_views
from xbridge._plan.options import CallOptions, find_converter, read_options
from xbridge._plan.rules import destination
from xbridge._plan.steps import Options
from xbridge._registry.call_cache import cache_version, decline, lookup_direct, store, unchanged
from xbridge._registry.registry import by_type, get
from xbridge.backends import HOST
from xbridge.errors import CopyError, OptionError, UnsupportedArrayError, XBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend, HostArray
    from xbridge._engine.source import Source
    from xbridge._plan.steps import Plan


def to_backend(x: object, name: str | ModuleType, options: CallOptions) -> Array:
    """See `xbridge.to_backend`, and `xbridge.to_numpy`, which has `writable`."""
    version = cache_version()
    source, target = resolve_request(x, name), get(name)
    checked = read_options((target, source.backend), options)
    if checked.by_dtype:
        return each([x], target, checked, version)[0]
    is_canonical = name == target.name and options.are_canonical(checked)
    y = None
    if not is_canonical or version != cache_version():  # or this call has loaded a backend
        y = find_converter(checked, target.name, type(x))(x)
    if y is None:
        y = call_untraced(partial(convert, version=version), source, [source.backend], target, checked)
    if not is_canonical and options.are_constant(name):
        known = find_converter(checked, target.name, type(x))
        if known is not decline:
            store(options.key("convert", name, type(x)), version, known)
    return y


def make_array(x: object, name: str | None, options: CallOptions) -> Array:
    """Make an array without `like`, by a cached call if there is one. See `xbridge.asarray`."""
    y = options.lookup("asarray", name, type(x), type(None))(x)
    return asarray(x, None, name, options) if y is None else y


def asarray(obj: object, like: object, name: str | ModuleType | None, options: CallOptions) -> Array:
    """See `xbridge.asarray`."""
    version, given = cache_version(), options
    target = None if name is None else get(name)
    device_source: Source | None = None
    if like is not None:
        model = resolve_like(like)
        target = target or model.backend
        if options.device is None and target is model.backend:
            device_source, options = model, options._replace(device=model.info().device)
    try:
        fn, content, backends = choose_converter(resolve_source(obj))
    except (OptionError, UnsupportedArrayError) as error:
        raise error if target is None else aim(error, target.name) from error.__cause__
    target_is_inferred = target is None
    target = target or backends[0]
    checked = read_options((target, backends[0]), options)
    if checked.by_dtype and fn is convert:
        return each([obj], target, checked, version)[0]
    y = find_converter(checked, target.name, type(obj))(obj) if fn is convert else None
    if y is None:
        run = partial(fn, version=version)
        y = make_by_dtype(partial(call_untraced, run, content, backends, target), target, checked)
    if _is_cacheable(like, [target, *backends]) and given.are_constant(name):
        if fn is convert:
            known = find_converter(checked, target.name, type(obj))
        else:
            known = literal_converter(type(obj), None if target_is_inferred else target, checked)
        if known is not decline:
            key = given.key("asarray", name, type(obj), type(like))
            store(key, version, known if like is None else with_like(known, device_source))
    return y


def align(
    xs: Sequence[object], like: object, name: str | ModuleType | None, options: CallOptions
) -> tuple[Array, ...]:
    """See `xbridge.align`."""
    version, choice = cache_version(), TargetChoice(name, like)
    sources = [resolve_source(x) for x in xs]
    refuse_alignment(sources)
    try:
        target, checked, device_source = choose_target(sources, choice, options)
        ys = [source.array for source in sources]  # a number or None stays as it is
        arrays = [i for i, x in enumerate(sources) if not (x.is_literal() or x.adapts())]
        for i, source in enumerate(sources):
            if source.is_literal() and not source.is_number():
                ys[i] = _align_list(source, target, checked, i)
        try:
            done = each([ys[i] for i in arrays], target, checked, version)
        except XBridgeError as error:
            error.remap_index(arrays)
            raise
    except XBridgeError as error:
        if error.index is None:
            raise
        raise error.at(f"xs[{error.index}]") from error
    for i, y in zip(arrays, done, strict=True):
        ys[i] = y
    _cache_align(version, target, sources, choice, options, checked, device_source)
    return tuple(ys)


def _align_list(source: Source, target: Backend, options: Options, index: int) -> Array:
    """Convert a list of numbers or arrays; an error has the index of the input."""
    try:
        fn, content, backends = choose_converter(source)
        return make_by_dtype(partial(call_untraced, fn, content, backends, target), target, options)
    except XBridgeError as error:
        error.index = index
        raise


def _cache_align(
    version: int,
    target: Backend,
    sources: list[Source],
    choice: TargetChoice,
    given: CallOptions,
    options: Options,
    device_source: Source | None,
) -> None:
    """Cache a call of `align` for arguments of these types, if there is a converter for each.

    Without a name or `like`, an array behind the first may decide because autograd or a transform follows it.
    So the cached call declines such an array, and a call in which one has decided is not cached.
    """
    name, like = choice
    arrays = [x for x in sources if not (x.is_literal() or x.is_scalar() or x.adapts())]
    target_is_inferred = name is None and like is None
    if target_is_inferred and arrays and arrays[0].backend is not target:
        return
    if not given.are_constant(name) or not _is_cacheable(like, [target, *(x.backend for x in sources)]):
        return
    converters: dict[type, Callable[[Any], Any]] = {}
    for source in sources:
        cls, follows = type(source.array), source.backend.follows
        converter = unchanged if source.adapts() else find_converter(options, target.name, cls)
        if converter is decline:
            return
        if target_is_inferred and source.backend is not target and follows:
            converter = unless_followed(follows, converter)
        converters[cls] = converter
    # Converters of `options` decline an array on another device, so only that of `like` is read.
    model = device_source if like is not None and device_source not in sources else None
    key = given.key("align", name, tuple([type(source.array) for source in sources]), type(like))
    store(key, version, with_like(convert_by_type(converters), model))


def _is_cacheable(like: object, backends: list[Backend]) -> bool:
    """Return True if a call may be cached: no compiler traces it, and the type of `like` has a backend."""
    traced = any(backend.is_tracing() for backend in backends)
    return not traced and (like is None or type(like) in by_type)


def choose_target(
    sources: list[Source], choice: TargetChoice, options: CallOptions
) -> tuple[Backend, Options, Source | None]:
    """Return the backend for all inputs, the options with the device for all, and the input that gave it.

    An explicit name or device goes before `like`, and `like` before the first array. Without a device, the
    first array of the target decides, else the first array.
    """
    first = leading_index(sources)
    name, like = choice
    leading = resolve_like(like) if like is not None else None if first is None else sources[first]
    target = get(name) if name is not None else leading.backend if leading else get(HOST)
    checked = read_options((target,), options)
    if checked.device is not None or leading is None or target.host_only:
        return target, checked, None
    own = [source for source in (leading, *sources) if source.backend is target]
    device_source = own[0] if own else leading
    try:
        device = call_untraced(device_for, device_source, [device_source.backend], target, checked)
    except XBridgeError as error:
        error.index = sources.index(device_source)  # `like` is imported already, so it does not raise
        raise
    return target, checked._replace(device=destination(target, None, device)), device_source


def array_location(source: Source) -> tuple[str, Device, str] | None:
    """Return the backend's name, the device and the dtype of an array; None for a number, a list or None."""
    if source.array is None or source.is_literal():
        return None
    return import_source(source).location()


def to_list(x: object, view: HostArray | None = None, listed: set[object] | None = None) -> Any:
    """See `xbridge.to_list`. A dtype of a view whose values are numbers is entered in `listed`."""
    version, host = cache_version(), get(HOST)
    view = find_converter(Options(), HOST, type(x))(x) if view is None else view
    if view is not None and view.dtype.isnative and host.dtype_of(view) in DTYPES:
        if listed is not None:
            listed.add(view.dtype)
        return view.tolist()
    source = resolve_source(x)
    fn = partial(list_values, version=version)
    return call_untraced(fn, source, [source.backend], host, Options())


def explain(x: object, name: str | ModuleType, options: CallOptions) -> Plan:
    """See `xbridge.explain`."""
    source, target = resolve_request(x, name, "explain"), get(name)
    checked = read_options((target, source.backend), options)
    if checked.writable is not None and target.name != HOST:
        asked, reason = f"writable={checked.writable}", "only to_numpy has writable"
        raise OptionError.build(f"take {asked} for {target.name}", reason, f"explain(x, 'numpy', {asked})")
    if checked.by_dtype:
        checked = checked._replace(dtype=mapped_dtype(source, target, checked), by_dtype=())
    return call_untraced(plan_for_explain, source, [source.backend], target, checked)


def unsafe_share(x: object, name: str | ModuleType) -> Array:
    """See `xbridge.unsafe_share`."""
    source, target = resolve_request(x, name, "unsafe_share"), get(name)
    return call_untraced(share, source, [source.backend], target, Options(copy=False, unsafe=True))


def shares_memory(a: object, b: object) -> bool:
    """See `xbridge.shares_memory`."""
    one_view, other_view = _host_view(a), _host_view(b)
    if one_view is not None and other_view is not None:
        return overlap_of_views(one_view, other_view)
    try:
        sources = [import_source(resolve_source(x), must_share=True) for x in (a, b)]
    except CopyError:
        return False
    one, other = (source.info().device for source in sources)
    if SHARDED in (one.kind, other.kind):
        raise UnsupportedArrayError.build(
            "compare the memory of these arrays", "one of them is on several devices"
        )
    if one != other:
        return False
    return overlap(*(source.backend.memory_layout(source.array) for source in sources))


@none_in_traces
def _host_view(x: object) -> HostArray | None:
    """Return a host array over the memory of an ordinary array, by the fast path; None for any other.

    A copy, which owns its memory, is not a view.
    """
    host: HostArray | None = lookup_direct(HOST, type(x))(x)
    return None if host is None or (host is not x and host.flags.owndata) else host
