"""The public functions behind their fast path: resolve the inputs, read the options once, convert, cache.

Each function here has the name and the meaning of a public one. It runs if no cached call has a result.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from xbridge._core.devices import SHARDED, Device
from xbridge._core.tracing import none_in_traces
from xbridge._engine.batch import convert_all
from xbridge._engine.convert import convert, list_values, plan_for_explain, share
from xbridge._engine.execute import call_untraced
from xbridge._engine.repeat import (
    Recorder,
    record_align,
    with_like,
)
from xbridge._engine.requests import refuse_alignment, resolve_request
from xbridge._engine.source import (
    TargetChoice,
    device_for,
    import_source,
    leading_index,
    resolve_like,
    resolve_source,
)
from xbridge._engine.stack import choose_converter, literal_converter, options_of_stack
from xbridge._host.advice import aim
from xbridge._host.memory import overlap, overlap_of_views
from xbridge._plan.options import CallOptions, read_options
from xbridge._plan.rules import destination
from xbridge._plan.steps import Options
from xbridge._registry.call_cache import cache_version, decline, lookup_direct, record
from xbridge._registry.registry import by_type, get
from xbridge.backends import HOST
from xbridge.errors import CopyError, OptionError, UnsupportedArrayError, XBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from xbridge._core.protocol import Array, Backend, HostArray
    from xbridge._engine.source import Source
    from xbridge._plan.steps import Plan


def to_backend(x: object, name: str | ModuleType, options: CallOptions) -> Array:
    """See `xbridge.to_backend`, and `xbridge.to_numpy`, which has `writable`."""
    version = cache_version()
    source, target = resolve_request(x, name), get(name)
    checked = read_options((target, source.backend), options)
    asked = _normalize_device(options)
    if name != target.name or version != cache_version():  # a module, or this call has loaded a backend
        known = asked.find_converter(target.name, type(x))
        if known is not decline and asked.are_constant():
            record(asked.key("convert", name, type(x)), version, known)
        result = known(x)
        if result is not None:
            return result
    fn = partial(convert, recorder=Recorder(asked, version))
    return call_untraced(fn, source, [source.backend], target, checked)


def to_isolated(x: object, name: str | ModuleType, options: CallOptions) -> Array:
    """Convert an array for a function that may write to the result: the writes must not reach the source."""
    target = get(name)
    source = resolve_source(x)
    checked = read_options((target, source.backend), options)._replace(isolated=True)
    return call_untraced(convert, source, [source.backend], target, checked)


def _normalize_device(options: CallOptions) -> CallOptions:
    """Return the options for the key of a cached call: with a string as device, which hashes faster."""
    device = options.device
    return options._replace(device=str(device)) if type(device) is Device else options


def to_backend_all(xs: list[object], name: str | ModuleType, options: CallOptions) -> list[Array]:
    """Convert each of many inputs as `to_backend` would. Small inputs are converted together."""
    version = cache_version()
    target, sources = get(name), [resolve_source(x) for x in xs]
    backends = [source.backend for source in sources]
    checked = read_options((target, *dict.fromkeys(backends)), options)
    fn = partial(convert_all, recorder=Recorder(_normalize_device(options), version))
    made: dict[int, Array] = {}
    for own in (True, False):
        chosen = [i for i, backend in enumerate(backends) if (backend is target) is own]
        owners = list(dict.fromkeys(backends[i] for i in chosen))
        try:
            ys = call_untraced(fn, [sources[i] for i in chosen], owners, target, checked)
        except XBridgeError as error:
            error.remap_index(chosen)
            raise
        made.update(zip(chosen, ys, strict=True))
    return [made[i] for i in range(len(xs))]


def make_array(x: object, name: str | None, options: CallOptions) -> Array:
    """Make an array without `like`, by a cached call if there is one. See `xbridge.asarray`."""
    made = options.lookup("asarray", name, type(x), type(None))(x)
    return asarray(x, None, name, options) if made is None else made


def asarray(obj: object, like: object, name: str | ModuleType | None, options: CallOptions) -> Array:
    """See `xbridge.asarray`."""
    version, given = cache_version(), options
    target = None if name is None else get(name)
    near: Source | None = None
    if like is not None:
        model = resolve_like(like)
        target = target or model.backend
        if options.device is None and target is model.backend:
            near, options = model, options._replace(device=model.info().device)
    try:
        fn, content, backends = choose_converter(resolve_source(obj))
    except (OptionError, UnsupportedArrayError) as error:
        raise error if target is None else aim(error, target.name) from error.__cause__
    target = target or backends[0]
    checked = read_options((target, backends[0]), options)
    asked = _normalize_device(options)
    result = asked.find_converter(target.name, type(obj))(obj) if fn is convert else None
    if result is None:
        recorder = Recorder(options_of_stack(fn, checked, asked), version)
        result = call_untraced(partial(fn, recorder=recorder), content, backends, target, checked)
    if _may_record(like, [target, *backends]) and given.are_constant(name):
        if fn is convert:
            known = asked.find_converter(target.name, type(obj))
        else:
            free = name is None and like is None
            known = literal_converter(type(obj), None if free else target, checked, asked)
        if known is not decline:
            key = given.key("asarray", name, type(obj), type(like))
            record(key, version, known if like is None else with_like(known, near))
    return result


def align(
    xs: Sequence[object], like: object, name: str | ModuleType | None, options: CallOptions
) -> tuple[Array, ...]:
    """See `xbridge.align`."""
    version = cache_version()
    sources = [resolve_source(x) for x in xs]
    refuse_alignment(sources)
    return align_sources(sources, "xs[{}]".format, TargetChoice(name, like), options, version=version)


def align_sources(
    sources: list[Source],
    place: Callable[[int], str],
    choice: TargetChoice,
    options: CallOptions,
    *,
    version: int,
    isolated: bool = False,
) -> tuple[Array, ...]:
    """Align resolved inputs.

    Parameters
    ----------
    sources : list of Source
        The inputs.
    place : callable
        Takes the index of an input and returns its name, for errors.
    choice, options
        The arguments of the call.
    version : int
        The cache version before the inputs were resolved.
    isolated : bool
        True if no write to a result may reach an input. Nothing is cached then.
    """
    try:
        target, checked, near = choose_target(sources, choice, options)
    except XBridgeError as error:
        if error.index is None:
            raise
        raise error.at(place(error.index)) from error
    checked = checked._replace(isolated=isolated)
    asked = _normalize_device(options._replace(device=checked.device))
    recorder = None if isolated else Recorder(asked, version)
    made: list[Array] = []
    late: list[int] = []
    try:
        for source in sources:
            if source.is_number():  # a number adapts to any array
                made.append(source.array)
                continue
            x = source.array
            result = asked.find_converter(target.name, type(x))(x) if recorder else None
            if result is None and source.backend.materialize_many and source.backend is not target:
                late.append(len(made))
            elif result is None:
                fn, given, backends = choose_converter(source)
                if fn is convert:
                    fn = partial(fn, recorder=recorder)
                result = call_untraced(fn, given, backends, target, checked)
            made.append(result)
    except XBridgeError as error:
        raise error.at(place(len(made))) from error
    for i, result in zip(late, _convert_jointly(sources, late, place, target, checked), strict=True):
        made[i] = result
    arrays = [source for source in sources if not (source.is_literal() or source.is_scalar())]
    # Without a name or `like`, an array behind the first may have decided because it is followed by autograd.
    # Other arrays of the same types may not be, so such a call is not cached.
    name, like = choice
    free = name is None and like is None
    always = not (free and arrays) or arrays[0].backend is target
    backends = [target, *(source.backend for source in sources)]
    if recorder and always and _may_record(like, backends) and options.are_constant(name):
        key = options.key("align", name, tuple([type(source.array) for source in sources]), type(like))
        record_align(key, recorder, target.name, sources, near, free=free)
    return tuple(made)


def _convert_jointly(
    sources: list[Source], chosen: list[int], place: Callable[[int], str], target: Backend, options: Options
) -> list[Array]:
    """Convert the chosen inputs together, so that lazy ones are computed at once."""
    some = [sources[i] for i in chosen]
    try:
        return call_untraced(convert_all, some, [source.backend for source in some], target, options)
    except XBridgeError as error:
        if error.index is None:  # a task failed, and its library does not say for which array
            raise
        raise error.at(place(chosen[error.index])) from error


def _may_record(like: object, backends: list[Backend]) -> bool:
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
    near = own[0] if own else leading
    try:
        device = call_untraced(device_for, near, [near.backend], target, checked)
    except XBridgeError as error:
        error.index = sources.index(near)  # `like` is imported already, so it does not raise
        raise
    return target, checked._replace(device=destination(target, None, device)), near


def array_location(source: Source) -> tuple[str, Device, str] | None:
    """Return the name of the backend, the device and the dtype of an array; None for a number or a list."""
    if source.is_literal():
        return None
    return import_source(source).location()


def to_list(x: object) -> Any:
    """See `xbridge.to_list`."""
    source = resolve_source(x)
    return call_untraced(list_values, source, [source.backend], get(HOST), Options())


def explain(x: object, name: str | ModuleType, options: CallOptions, *, isolated: bool = False) -> Plan:
    """See `xbridge.explain`."""
    source, target = resolve_request(x, name, "explain"), get(name)
    checked = read_options((target, source.backend), options)._replace(isolated=isolated)
    if checked.writable is not None and target.name != HOST:
        asked, reason = f"writable={checked.writable}", "only to_numpy has writable"
        raise OptionError.build(f"take {asked} for {target.name}", reason, f"explain(x, 'numpy', {asked})")
    return call_untraced(plan_for_explain, source, [source.backend], target, checked)


def unsafe_share(x: object, name: str | ModuleType) -> Array:
    """See `xbridge.unsafe_share`."""
    source, target = resolve_request(x, name, "unsafe_share"), get(name)
    return call_untraced(share, source, [source.backend], target, Options(copy=False, unsafe=True))


def shares_memory(a: object, b: object) -> bool:
    """See `xbridge.shares_memory`."""
    one_view, other_view = _host_view(a), _host_view(b)
    if one_view is not None and other_view is not None:
        found = overlap_of_views(one_view, other_view)
        if found is not None:
            return found
    try:
        sources = [import_source(resolve_source(x), must_share=True) for x in (a, b)]
    except CopyError:
        return False
    one, other = (source.info().device for source in sources)
    if SHARDED in (one, other):
        raise UnsupportedArrayError.build(
            "compare the memory of these arrays", "one of them is on several devices", "its parts"
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
