"""Run a verb that the fast path leaves: resolve its input and read its options, once.

A conversion between libraries runs `outside` of their contexts, such as the tracing of a program. A
conversion within one library is part of its context.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from xbridge import _host
from xbridge._core.devices import SHARDED, Device
from xbridge._engine.batch import convert_all
from xbridge._engine.convert import convert, foresee, list_values, share
from xbridge._engine.execute import outside
from xbridge._engine.learned import Lesson, recall
from xbridge._engine.source import device_for, import_source, leading_index, resolve_like, resolve_source
from xbridge._engine.stack import choose_converter, from_arrays
from xbridge._plan.options import read_options
from xbridge._plan.rules import destination
from xbridge._plan.steps import Options
from xbridge.backends import HOST
from xbridge.backends._registry import generation, get
from xbridge.errors import CopyError, UnsupportedArrayError, XBridgeError

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
    target, source = get(name), resolve_source(x)
    options = read_options((target, source.backend), **keywords)
    fn = partial(convert, lesson=Lesson(target.name, _given(**keywords), begun))
    return outside(fn, source, [source.backend], target, options)


def to_writable(x: object, **keywords: object) -> HostArray:
    """See `xbridge.to_numpy`, with `writable`."""
    target, source = get(HOST), resolve_source(x)
    options = read_options((target, source.backend), device=None, **keywords)
    return outside(convert, source, [source.backend], target, options)


def _given(*, device: object, dtype: object, copy: object, grad: object, **_: object) -> Given:
    """Return the options in the key of a learned call. A string has a faster hash than a `Device`."""
    return str(device) if type(device) is Device else device, dtype, copy, grad


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
    begun = generation()
    target = None if name is None else get(name)
    if like is not None:
        model = resolve_like(like)
        target = target or model.backend
        if device is None and target is model.backend:
            device = model.info().device
    fn, given, backends = choose_converter(resolve_source(obj))
    target = target or backends[0]
    if keywords["requires_grad"] is None and fn is not from_arrays:
        words = _given(device=device, **keywords)
        result = recall(target.name, obj, words)
        if result is not None:
            return result
        fn = partial(fn, lesson=Lesson(target.name, words, begun))
    options = read_options((target, backends[0]), device=device, **keywords)
    return outside(fn, given, backends, target, options)


def align(
    xs: Sequence[object], like: object, name: str | ModuleType | None, **keywords: object
) -> tuple[Array, ...]:
    """See `xbridge.align`."""
    begun = generation()
    sources = [resolve_source(x) for x in xs]
    return align_sources(sources, "xs[{}]".format, like, name, begun=begun, **keywords)


def align_sources(
    sources: list[Source],
    place: Callable[[int], str],
    like: object,
    name: str | ModuleType | None,
    *,
    begun: int,
    **keywords: object,
) -> tuple[Array, ...]:
    """Align inputs that were resolved after the generation `begun`. `place` names one of them in an error."""
    try:
        target, options = choose_target(sources, like, name, **keywords)
    except XBridgeError as error:
        if error.index is None:
            raise
        raise error.at(place(error.index)) from error
    words = _given(**{**keywords, "device": options.device})
    made: list[Array] = []
    try:
        for source in sources:
            if source.is_number():  # a number adapts to any array
                made.append(source.array)
                continue
            result = recall(target.name, source.array, words)
            if result is None:
                fn, given, backends = choose_converter(source)
                if fn is not from_arrays:
                    fn = partial(fn, lesson=Lesson(target.name, words, begun))
                result = outside(fn, given, backends, target, options)
            made.append(result)
    except XBridgeError as error:
        raise error.at(place(len(made))) from error
    return tuple(made)


def choose_target(
    sources: list[Source], like: object, name: str | ModuleType | None, **keywords: object
) -> tuple[Backend, Options]:
    """Return the backend for all inputs, and the options with the device for all.

    An explicit name or device goes before `like`, and `like` before the first array. Without a device, the
    first array of the target decides, else the first array.
    """
    first = leading_index(sources)
    leading = resolve_like(like) if like is not None else None if first is None else sources[first]
    target = get(name) if name is not None else leading.backend if leading else get(HOST)
    options = read_options((target,), **keywords)
    if options.device is None and leading and not target.host_only:
        own = [source for source in (leading, *sources) if source.backend is target]
        near = own[0] if own else leading
        try:
            device = outside(device_for, near, [near.backend], target, options)
        except XBridgeError as error:
            error.index = sources.index(near)  # `like` is imported already, so it does not raise
            raise
        options = options._replace(device=destination(target, None, device))
    return target, options


def home(source: Source) -> tuple[str, Device, str] | None:
    """Return the backend, device and dtype of an array; None for a number or a list."""
    if source.is_literal():
        return None
    source = import_source(source)
    info = source.info()
    return source.backend.name, info.device, info.dtype


def to_list(x: object) -> Any:
    """See `xbridge.to_list`."""
    source = resolve_source(x)
    return outside(list_values, source, [source.backend], get(HOST), Options())


def explain(x: object, name: str | ModuleType, **keywords: object) -> Plan:
    """See `xbridge.explain`."""
    target, source = get(name), resolve_source(x)
    options = read_options((target, source.backend), **keywords)
    return outside(foresee, source, [source.backend], target, options)


def unsafe_share(x: object, name: str | ModuleType) -> Array:
    """See `xbridge.unsafe_share`."""
    target, source = get(name), resolve_source(x)
    return outside(share, source, [source.backend], target, Options(copy=False, unsafe=True))


def shares_memory(a: object, b: object) -> bool:
    """See `xbridge.shares_memory`."""
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
    return _host.overlap(*(source.backend.memory_layout(source.array) for source in sources))
