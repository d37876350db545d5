"""Run a verb that the fast path leaves: resolve its input and read its options, once.

A conversion between libraries runs `outside` of their contexts, such as the tracing of a program. A
conversion within one library is part of its context.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from xbridge._core.devices import SHARDED, Device
from xbridge._core.dynamo import no_result, traced_as
from xbridge._engine.batch import convert_all
from xbridge._engine.convert import convert, foresee, list_values, share
from xbridge._engine.execute import outside
from xbridge._engine.learned import Lesson, are_constant, converter, recall
from xbridge._engine.learned_calls import learn_align, learn_call
from xbridge._engine.requests import refuse_alignment, requested
from xbridge._engine.source import device_for, import_source, leading_index, resolve_like, resolve_source
from xbridge._engine.stack import choose_converter, literal_converter, words_for
from xbridge._host.memory import NATIVE, overlap, overlap_of_views
from xbridge._plan.options import read_options
from xbridge._plan.rules import destination
from xbridge._plan.steps import Options
from xbridge._registry.registry import (
    by_type,
    fast_converters,
    generation,
    get,
    is_flag,
    learned,
    never,
    repeat_asarray,
    store_call,
)
from xbridge.backends import HOST
from xbridge.errors import CopyError, OptionError, UnsupportedArrayError, XBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from xbridge._core.protocol import Array, Backend, HostArray
    from xbridge._engine.learned import Given
    from xbridge._engine.source import Source
    from xbridge._plan.steps import Plan


def to_backend(x: object, name: str | ModuleType, **keywords: object) -> Array:
    """See `xbridge.to_backend`."""
    begun = generation()
    target, source = requested(x, name)
    words = _given(**keywords)
    if name != target.name:  # a module, of which the fast path has no table
        again = converter(target.name, type(x), words) if is_flag(words[2]) else never
        if again is not never and are_constant(words):
            store_call(learned, (name, type(x), *words), again, begun)
        result = again(x)
        if result is not None:
            return result
    options = read_options((target, source.backend), **keywords)
    fn = partial(convert, lesson=Lesson(target.name, words, begun))
    return outside(fn, source, [source.backend], target, options)


def to_writable(x: object, **keywords: object) -> HostArray:
    """See `xbridge.to_numpy`, with `writable`."""
    begun = generation()
    target, source = requested(x, HOST)
    options = read_options((target, source.backend), device=None, **keywords)
    fn = partial(convert, lesson=Lesson(HOST, _given(device=None, **keywords), begun))
    return outside(fn, source, [source.backend], target, options)


def to_isolated(x: object, name: str | ModuleType, **keywords: object) -> Array:
    """Convert an array for a function that may write to it, which the caller does not see."""
    target, source = get(name), resolve_source(x)
    options = read_options((target, source.backend), **keywords)._replace(isolated=True)
    return outside(convert, source, [source.backend], target, options)


def _given(
    *,
    device: object,
    dtype: object,
    copy: object,
    grad: object,
    requires_grad: object = None,
    writable: object = False,
) -> Given:
    """Return the options in the key of a learned call. A string has a faster hash than a `Device`."""
    words = (str(device) if type(device) is Device else device, dtype, copy, grad)
    if writable is not False:
        return (*words, requires_grad, writable)
    return words if requires_grad is None else (*words, requires_grad)


def to_backend_all(xs: list[object], name: str | ModuleType, **keywords: object) -> list[Array]:
    """Convert each of many inputs as `to_backend` would. Small inputs are converted together."""
    begun = generation()
    target, sources = get(name), [resolve_source(x) for x in xs]
    backends = [source.backend for source in sources]
    options = read_options((target, *dict.fromkeys(backends)), **keywords)
    fn = partial(convert_all, lesson=Lesson(target.name, _given(**keywords), begun))
    made: dict[int, Array] = {}
    for own in (True, False):
        chosen = [i for i, backend in enumerate(backends) if (backend is target) is own]
        owners = list(dict.fromkeys(backends[i] for i in chosen))
        try:
            ys = outside(fn, [sources[i] for i in chosen], owners, target, options)
        except XBridgeError as error:
            error.remap_index(chosen)
            raise
        made.update(zip(chosen, ys, strict=True))
    return [made[i] for i in range(len(xs))]


def asarray(
    obj: object, like: object, name: str | ModuleType | None, *, device: object, **keywords: object
) -> Array:
    """See `xbridge.asarray`."""
    made = repeat_asarray(obj, like, name, device=device, **keywords)
    if made is not None:
        return made
    begun = generation()
    call = ("asarray", name, type(like), device, *keywords.values(), type(obj))
    target = None if name is None else get(name)
    near: Source | None = None
    if like is not None:
        model = resolve_like(like)
        target = target or model.backend
        if device is None and target is model.backend:
            near, device = model, model.info().device
    fn, given, backends = choose_converter(resolve_source(obj))
    target = target or backends[0]
    options = read_options((target, backends[0]), device=device, **keywords)
    words = _given(device=device, **keywords)
    result = recall(target.name, obj, words) if fn is convert else None
    if result is None:
        lesson = Lesson(target.name, words_for(fn, options, words), begun)
        result = outside(partial(fn, lesson=lesson), given, backends, target, options)
    if _may_learn(like, [target, *backends]):
        if fn is convert:
            again = converter(target.name, type(obj), words)
        else:
            again = literal_converter(None if name is None and like is None else target, options, words)
        learn_call(call, begun, again, near.backend if near else None)
    return result


def align(
    xs: Sequence[object], like: object, name: str | ModuleType | None, **keywords: object
) -> tuple[Array, ...]:
    """See `xbridge.align`."""
    begun = generation()
    refuse_alignment(xs)
    sources = [resolve_source(x) for x in xs]
    return align_sources(sources, "xs[{}]".format, like, name, begun=begun, **keywords)


def align_sources(
    sources: list[Source],
    place: Callable[[int], str],
    like: object,
    name: str | ModuleType | None,
    *,
    begun: int,
    isolated: object = False,
    **keywords: object,
) -> tuple[Array, ...]:
    """Align inputs that were resolved after the generation `begun`. `place` names one of them in an error.

    With `isolated`, no result shares memory that can be written through it, and nothing is learned.
    """
    try:
        target, options, near = choose_target(sources, like, name, **keywords)
    except XBridgeError as error:
        if error.index is None:
            raise
        raise error.at(place(error.index)) from error
    options = options._replace(isolated=isolated is True)
    words = _given(**{**keywords, "device": options.device})
    lesson = None if isolated else Lesson(target.name, words, begun)
    made: list[Array] = []
    late: list[int] = []
    try:
        for source in sources:
            if source.is_number():  # a number adapts to any array
                made.append(source.array)
                continue
            result = recall(target.name, source.array, words) if lesson else None
            if result is None and source.backend.materialize_many and source.backend is not target:
                late.append(len(made))
            elif result is None:
                fn, given, backends = choose_converter(source)
                if fn is convert:
                    fn = partial(fn, lesson=lesson)
                result = outside(fn, given, backends, target, options)
            made.append(result)
    except XBridgeError as error:
        raise error.at(place(len(made))) from error
    for i, result in zip(late, _all_together(sources, late, place, target, options), strict=True):
        made[i] = result
    arrays = [source for source in sources if not (source.is_literal() or source.is_scalar())]
    # The target of a call without a name or `like` may be that of an array that is followed, this time.
    always = name is not None or like is not None or not arrays or arrays[0].backend is target
    if lesson and always and _may_learn(like, [target, *(source.backend for source in sources)]):
        call = ("align", name, type(like), *keywords.values(), *(type(source.array) for source in sources))
        learn_align(call, lesson, sources, near)
    return tuple(made)


def _all_together(
    sources: list[Source], chosen: list[int], place: Callable[[int], str], target: Backend, options: Options
) -> list[Array]:
    """Convert the chosen inputs, which may be lazy, together."""
    some = [sources[i] for i in chosen]
    try:
        return outside(convert_all, some, [source.backend for source in some], target, options)
    except XBridgeError as error:
        if error.index is None:  # a task failed, and its library does not say for which array
            raise
        raise error.at(place(chosen[error.index])) from error


def _may_learn(like: object, backends: list[Backend]) -> bool:
    """Return True if a call may be learned: no compiler traces it, and the type of `like` gives a backend."""
    traced = any(backend.is_tracing() for backend in backends)
    return not traced and (like is None or type(like) in by_type)


def choose_target(
    sources: list[Source], like: object, name: str | ModuleType | None, **keywords: object
) -> tuple[Backend, Options, Source | None]:
    """Return the backend for all inputs, the options with the device for all, and the input that gave it.

    An explicit name or device goes before `like`, and `like` before the first array. Without a device, the
    first array of the target decides, else the first array.
    """
    first = leading_index(sources)
    leading = resolve_like(like) if like is not None else None if first is None else sources[first]
    target = get(name) if name is not None else leading.backend if leading else get(HOST)
    options = read_options((target,), **keywords)
    if options.device is not None or leading is None or target.host_only:
        return target, options, None
    own = [source for source in (leading, *sources) if source.backend is target]
    near = own[0] if own else leading
    try:
        device = outside(device_for, near, [near.backend], target, options)
    except XBridgeError as error:
        error.index = sources.index(near)  # `like` is imported already, so it does not raise
        raise
    return target, options._replace(device=destination(target, None, device)), near


def home(source: Source) -> tuple[str, Device, str] | None:
    """Return the backend, device and dtype of an array; None for a number or a list."""
    if source.is_literal():
        return None
    return import_source(source).home()


def to_list(x: object) -> Any:
    """See `xbridge.to_list`."""
    view = _view(x)
    if view is not None and view.dtype in NATIVE:
        return view.tolist()
    source = resolve_source(x)
    return outside(list_values, source, [source.backend], get(HOST), Options())


def explain(x: object, name: str | ModuleType, *, isolated: bool = False, **keywords: object) -> Plan:
    """See `xbridge.explain`."""
    target, source = requested(x, name, "explain")
    options = read_options((target, source.backend), **keywords)._replace(isolated=isolated)
    if options.writable and target.name != HOST:
        reason = "only to_numpy makes a writable array"
        raise OptionError.build(
            f"take writable=True for {target.name}", reason, "explain(x, 'numpy', writable=True)"
        )
    return outside(foresee, source, [source.backend], target, options)


def unsafe_share(x: object, name: str | ModuleType) -> Array:
    """See `xbridge.unsafe_share`."""
    target, source = requested(x, name)
    return outside(share, source, [source.backend], target, Options(copy=False, unsafe=True))


def shares_memory(a: object, b: object) -> bool:
    """See `xbridge.shares_memory`."""
    one_view, other_view = _view(a), _view(b)
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


@traced_as(no_result)
def _view(x: object) -> HostArray | None:
    """Return a view of the memory of an ordinary array; None in doubt."""
    direct = fast_converters[HOST].get(type(x))
    host: HostArray | None = direct(x) if direct else None
    return None if host is None or (host is not x and host.flags.owndata) else host
