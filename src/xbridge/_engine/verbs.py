"""The public functions behind their fast path: resolve the inputs, read the options once, convert, cache.

Each function here has the name and the meaning of a public one. It runs if no cached call has a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

from xbridge._core.devices import CPU, SHARDED, Device
from xbridge._core.dtypes import DTYPES, category, holds_every, is_numeric
from xbridge._core.protocol import Array, Backend, HostArray
from xbridge._core.tracing import is_traced, none_in_traces
from xbridge._engine import literals
from xbridge._engine.convert import call_untraced, convert, each, in_groups, plan, refuse_unsupported
from xbridge._engine.execute import run_steps
from xbridge._engine.repeat import convert_by_type, unless_followed, with_like
from xbridge._engine.source import (
    Source,
    device_for,
    import_for,
    import_source,
    leading_index,
    refuse_alignment,
    resolve_like,
    resolve_request,
    resolve_source,
    with_mapped_dtype,
)
from xbridge._engine.stack import find_filler, from_list, read_list
from xbridge._host.advice import aim
from xbridge._host.importers import names_in_table
from xbridge._host.memory import check_castable, native_dtype, ones, overlap, overlap_of_views
from xbridge._plan.options import CallOptions, find_converter, read_options
from xbridge._plan.reasons import reason
from xbridge._plan.rules import destination, has_device
from xbridge._plan.steps import Conversion, Options, Plan, Step, nbytes_of
from xbridge._registry import registry
from xbridge._registry.call_cache import cache_version, cached, decline, lookup_direct, store, unchanged
from xbridge._registry.registry import by_type, get
from xbridge.backends import HOST
from xbridge.errors import (
    CopyError,
    DTypeError,
    OptionError,
    UnsupportedArrayError,
    XBridgeError,
    index_errors,
    type_of,
)


def to_backend(x: object, name: str | ModuleType, options: CallOptions) -> Array:
    """See `xbridge.to_backend`, and `xbridge.to_numpy`, which has `writable`."""
    version = cache_version()
    source, target = resolve_request(x, name), get(name)
    checked = read_options((target, source.backend), options)
    y = convert(source, target, checked)
    known = find_converter(checked, target.name, type(x))
    if known is not decline and options.are_constant(name):
        key = options.key("convert", name, type(x))
        if key not in cached:  # the options are not written as those by which the conversion is cached
            store(key, version, known)
    return y


def make_array(x: object, name: str | None, options: CallOptions) -> Array:
    """Make an array without `like`, by a cached call if there is one. See `xbridge.asarray`."""
    y = options.lookup("asarray", name, type(x), type(None))(x)
    return asarray(x, None, name, options) if y is None else y


def asarray(obj: object, like: object, name: str | ModuleType | None, options: CallOptions) -> Array:
    """See `xbridge.asarray`."""
    target = None if name is None else get(name)  # first, because to load it empties the cache
    version, given = cache_version(), options
    device_source: Source | None = None
    if like is not None:
        model = resolve_like(like)
        target = target or model.backend
        if options.device is None and target is model.backend:
            device_source, options = model, options._replace(device=model.info().device)
    target_is_inferred = target is None
    source = resolve_source(obj)
    try:
        nest, backends = read_list(source) if source.is_literal() else (None, [source.backend])
    except (OptionError, UnsupportedArrayError) as error:
        raise error if target is None else aim(error, target) from error.__cause__
    target = target or backends[0]
    checked = read_options((target, backends[0]), options)
    y = from_list(nest, backends, target, checked) if nest else convert(source, target, checked)
    if _is_repeated(like, device_source, checked) and given.are_constant(name):
        finish = unchanged if like is None else partial(with_like, source=device_source)
        key = given.key("asarray", name, type(obj), type(like))
        if nest is None:
            known = find_converter(checked, target.name, type(obj))
            if known is not decline:
                store(key, version, finish(known))
        elif type(obj) in literals.CACHED:
            fill = find_filler(nest, target, checked, target_is_inferred=target_is_inferred)
            if fill:
                literals.cache_filler(key, version, nest, fill, finish)
    return y


def align(
    xs: Sequence[object], like: object, name: str | ModuleType | None, options: CallOptions
) -> tuple[Array, ...]:
    """See `xbridge.align`."""
    version = cache_version()
    sources = [resolve_source(x) for x in xs]
    refuse_alignment(sources)
    try:
        target, checked, device_source = choose_target(sources, name, like, options)

        def convert_part(kind: str, part: list[Source]) -> list[Any]:
            if kind == "lists":
                return list(index_errors(from_list(*read_list(x), target, checked) for x in part))
            arrays = [source.array for source in part]
            return each(arrays, target, checked) if kind == "arrays" else arrays

        kinds = ["others" if x.adapts() else "lists" if x.is_literal() else "arrays" for x in sources]
        ys = in_groups(kinds, sources, convert_part)
    except XBridgeError as error:
        if error.index is None:
            raise
        raise error.at(f"xs[{error.index}]") from error
    # Converters of `checked` decline an array on another device, so only that of `like` is read.
    model = device_source if like is not None and device_source not in sources else None
    if _is_repeated(like, model, checked) and options.are_constant(name):
        known = _aligned_before(sources, target, checked, target_is_inferred=name is None and like is None)
        if known is not decline:
            key = options.key("align", name, tuple([type(x) for x in xs]), type(like))
            store(key, version, with_like(known, model))
    return tuple(ys)


def _aligned_before(
    sources: list[Source], target: Backend, options: Options, *, target_is_inferred: bool
) -> Callable[[Any], Any]:
    """Return the function that aligns inputs of these types as they were before, or one that declines.

    Without a name or `like`, an array behind the first may decide because autograd or a transform follows it.
    So the function declines such an array, and a call in which one has decided is not cached.
    """
    arrays = [x for x in sources if not (x.is_literal() or x.is_scalar() or x.adapts())]
    if target_is_inferred and arrays and arrays[0].backend is not target:
        return decline
    converters: dict[type, Callable[[Any], Any]] = {}
    for source in sources:
        cls, follows = type(source.array), source.backend.follows
        converter = unchanged if source.adapts() else find_converter(options, target.name, cls)
        if converter is decline:
            return decline
        if target_is_inferred and source.backend is not target and follows:
            converter = unless_followed(follows, converter)
        converters[cls] = converter
    return convert_by_type(converters)


def _is_repeated(like: object, device_source: Source | None, options: Options) -> bool:
    """Return True if a call may be cached: with `like`, whose type has a backend, on the host alone."""
    is_on_host = device_source is None or options.device == CPU
    return is_on_host and (like is None or type(like) in by_type) and not is_traced()


def choose_target(
    sources: list[Source], name: str | ModuleType | None, like: object, options: CallOptions
) -> tuple[Backend, Options, Source | None]:
    """Return the backend for all inputs, the options with the device for all, and the input that gave it.

    An explicit name or device goes before `like`, and `like` before the first array. Without a device, the
    first array of the target decides, else the first array.
    """
    first = leading_index(sources)
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
    found = import_source(source)
    return found.backend.name, found.backend.device_of(found.array), found.backend.dtype_of(found.array)


def to_list(x: object, view: HostArray | None = None, listed: set[object] | None = None) -> Any:
    """See `xbridge.to_list`. A dtype of a view whose values are numbers is entered in `listed`."""
    host = get(HOST)
    view = find_converter(Options(), HOST, type(x))(x) if view is None else view
    if view is not None and view.dtype.isnative and host.dtype_of(view) in DTYPES:
        if listed is not None:
            listed.add(view.dtype)
        return view.tolist()
    source = resolve_source(x)
    if source.is_literal():
        reason = "numbers and lists are not arrays"
        raise UnsupportedArrayError.build(f"list {type_of(x)}", reason, "to_list(asarray(x))")
    return call_untraced(_list_values, source, [source.backend], host, Options())


def _list_values(source: Source, host: Backend, options: Options) -> Any:
    """List the values of an array as Python numbers."""
    try:
        source = import_for(source, host, options)
    except DTypeError as error:
        hint = f"{error.hint}.tolist()" if error.hint.startswith("to_numpy(") else error.hint
        raise error.build(error.action, error.reason, hint) from error.__cause__
    info, cast = source.info(), None
    dtype, is_known = info.dtype, info.dtype in DTYPES
    if is_known and host.unsupported_dtype(dtype, CPU):
        cast = "float32"
    elif is_known and not info.native_byteorder:
        cast = dtype  # to name it gives native byte order, in which each lists
    listed = None
    if is_known or not is_numeric(dtype):
        refuse_unsupported(source, host, leaving=True)
        listed = convert(source, host, options._replace(dtype=cast))
    if listed is None or host.array_info(listed).dtype not in DTYPES:
        hint = f"to_numpy(x, dtype={'complex128' if category(dtype) == 'complex' else 'float64'!r}).tolist()"
        raise DTypeError.build(f"list an array of {dtype}", "Python has no such numbers", hint)
    return listed.tolist()


def explain(x: object, name: str | ModuleType, options: CallOptions) -> Plan:
    """See `xbridge.explain`."""
    source, target = resolve_request(x, name, "explain"), get(name)
    checked = read_options((target, source.backend), options)
    if checked.writable is not None and target.name != HOST:
        asked, reason = f"writable={checked.writable}", "only to_numpy has writable"
        raise OptionError.build(f"take {asked} for {target.name}", reason, f"explain(x, 'numpy', {asked})")
    checked = with_mapped_dtype(source, target, checked)
    return call_untraced(_explain, source, [source.backend], target, checked)


def _explain(source: Source, target: Backend, options: Options) -> Plan:
    """Return the plan with sizes, the source's layout, and any error that the conversion would raise."""
    given, names = _import_view(source, target, options)
    backend, info = given.backend, given.info()
    try:
        if options.copy is False:
            import_source(source, target, must_share=True)
        found = plan(given, target, options).with_sizes(given.array)
        if backend.name == HOST and any(step.op == "astype" for step in found.steps):
            check_castable(given.array, native_dtype(found.conversion.dtype))
        for step in found.steps:  # within a library, a mode may accept a device that is not here
            if step.op == "to_device" and not has_device(target, found.conversion.device):
                run_steps(step.module.from_numpy(ones(native_dtype("float32"))), found, [step])
        for observer in registry.observers:
            observer.forbid(found)
    except XBridgeError as error:
        conversion = Conversion(backend, target, info, options, info.dtype, info.device)
        found = Plan(conversion, (), error=error.with_traceback(None))  # a traceback holds the array
    if names and not found.error:
        found = _after_columns(found, names)
    if backend.unsupported(given.array, leaving=True):
        return found
    layout = backend.memory_layout(given.array)
    if names:  # the array has the dtype after the cast
        layout = layout._replace(itemsize=native_dtype(found.conversion.info.dtype).itemsize)
    # A scalar stands for a value, which has no address.
    return replace(found, layout=layout._replace(address=0) if source.is_scalar() else layout)


def _import_view(source: Source, target: Backend, options: Options) -> tuple[Source, list[str]]:
    """Import an input without copying its memory, so that its plan can be shown. A scalar is copied.

    A table whose columns are not in one piece of memory is copied, too. Their dtypes are returned then.
    """
    try:
        return import_source(source, target, must_share=source.foreign), []
    except CopyError as error:
        names = names_in_table(source.array)
        if names:  # an error is the one that the conversion raises
            return import_for(source, target, options._replace(copy=None)), names
        action = f"explain a conversion of {type_of(source.array)}"
        why = "its memory cannot be shown without a copy or a computation"
        raise UnsupportedArrayError.build(action, why) from error


def _after_columns(found: Plan, names: list[str]) -> Plan:
    """Return the plan of a table, which begins with the copy or cast of its columns when it is imported."""
    info = found.conversion.info
    size = nbytes_of(info.shape, info.dtype)
    if names == [info.dtype]:
        steps = [Step(get(HOST), "copy", (), reason("no_sharing", "it exports new memory"), size)]
        if not found.steps and not found.writable:  # as it is exported
            steps.append(Step(get(HOST), "as_readonly"))
    else:
        become = "becomes" if len(names) == 1 else "become"
        why = reason("cast", f"{' and '.join(names)} {become} {info.dtype}, column by column")
        steps = [Step(get(HOST), "astype", (info.dtype,), why, size)]
    # The dtype of the columns that decides whether each value is kept.
    before = next((name for name in names if not holds_every(name, info.dtype)), names[0])
    conversion = found.conversion._replace(info=info._replace(dtype=before))
    return replace(found, conversion=conversion, steps=(*steps, *found.steps))


def unsafe_share(x: object, name: str | ModuleType) -> Array:
    """See `xbridge.unsafe_share`."""
    source, target = resolve_request(x, name, "unsafe_share"), get(name)
    return call_untraced(_share, source, [source.backend], target, Options(copy=False, unsafe=True))


def _share(source: Source, target: Backend, options: Options) -> Array:
    """Convert an array over the same memory, even if the contract would copy it."""
    source = import_source(source, target, must_share=True)
    result = convert(source, target, options)
    if source.backend is target:
        return result
    layouts = source.backend.memory_layout(source.array), target.memory_layout(result)
    if not any(layout.is_unallocated() for layout in layouts) and not overlap(*layouts):
        action, reason = f"share this memory with {target.name}", f"{target.name} has copied it"
        raise CopyError.build(action, reason, f"to_backend(x, {target.name!r})")
    return result


def shares_memory(a: object, b: object) -> bool:
    """See `xbridge.shares_memory`."""
    one_view, other_view = _host_view(a), _host_view(b)
    if one_view is not None and other_view is not None:
        return overlap_of_views(one_view, other_view)
    try:
        sources = [*index_errors(import_source(resolve_source(x), must_share=True) for x in (a, b))]
    except CopyError:
        return False
    except XBridgeError as error:
        raise error.at("ab"[error.index or 0]) from error
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
