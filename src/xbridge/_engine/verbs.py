"""Begin a verb off the fast path: resolve its input and read its options, once.

A conversion between libraries runs `outside` of what these libraries do at the moment, such as tracing a
program. A conversion within one library is part of that.
"""

from __future__ import annotations

from itertools import compress
from operator import not_
from typing import TYPE_CHECKING, Any, TypeVar

from xbridge import _host
from xbridge._core.devices import SHARDED
from xbridge._engine.batch import convert_all
from xbridge._engine.convert import convert, foresee, list_values, share
from xbridge._engine.source import import_source, leading_index, resolve_like, resolve_source
from xbridge._engine.stack import from_arrays, from_numbers
from xbridge._plan.options import read_options
from xbridge._plan.rules import destination
from xbridge._plan.steps import Options
from xbridge.backends import HOST
from xbridge.backends._registry import backend_for, get
from xbridge.errors import CopyError, UnsupportedArrayError, XBridgeError, index_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend
    from xbridge._engine.source import Source
    from xbridge._plan.steps import Plan

T = TypeVar("T")


def outside(
    fn: Callable[[Any, Backend, Options], T],
    given: object,
    sources: list[Backend],
    target: Backend,
    options: Options,
) -> T:
    """Call `fn(given, target, options)` outside of the contexts of the libraries, such as tracing.

    A call within one library is part of its context. If a library traces the caller, the options say so,
    because the result will be traced again.
    """
    if all(source is target for source in sources):
        return fn(given, target, options)
    backends: list[Backend] = []
    for backend in (*sources, target):
        if backend.is_tracing():
            return backend.untraced(fn)(given, target, options._replace(compiled=True))  # type: ignore[no-any-return] # as `fn`
        if backend not in backends:
            backends.append(backend)
    for backend in backends:
        fn = backend.untraced(fn)
    return fn(given, target, options)


def to_backend(x: object, name: str | ModuleType, **keywords: object) -> Array:
    """See `xbridge.to_backend`."""
    target, source = get(name), resolve_source(x)
    options = read_options((target, source.backend), **keywords)
    return outside(convert, source, [source.backend], target, options)


def to_backend_all(xs: list[object], name: str | ModuleType, **keywords: object) -> list[Array]:
    """Convert each of many inputs as `to_backend` would, small ones together."""
    target, sources = get(name), [resolve_source(x) for x in xs]
    backends = [source.backend for source in sources]
    options = read_options((target, *dict.fromkeys(backends)), **keywords)
    made: dict[int, Array] = {}
    for own in (True, False):
        chosen = [i for i, backend in enumerate(backends) if (backend is target) is own]
        owners = list(dict.fromkeys(backends[i] for i in chosen))
        try:
            ys = outside(convert_all, [sources[i] for i in chosen], owners, target, options)
        except XBridgeError as error:
            error.remap_index(chosen)
            raise
        made.update(zip(chosen, ys, strict=True))
    return [made[i] for i in range(len(xs))]


def asarray(
    obj: object, like: object, name: str | ModuleType | None, *, device: object, **keywords: object
) -> Array:
    """See `xbridge.asarray`."""
    target = None if name is None else get(name)
    if like is not None:
        model = resolve_like(like)
        target = target or model.backend
        if device is None and target is model.backend:
            device = model.info().device
    fn, given, backends = _reader(resolve_source(obj))
    target = target or backends[0]
    options = read_options((target, backends[0]), device=device, **keywords)
    return outside(fn, given, backends, target, options)


def _reader(source: Source) -> tuple[Callable[[Any, Backend, Options], Array], Any, list[Backend]]:
    """Return what converts an input, its first argument, and the backends in it, the leading one first."""
    if not source.is_literal():
        return convert, source, [source.backend]
    nest = _host.nest(source.array)
    if nest is None:
        return from_numbers, source.array, [source.backend]
    kinds = dict.fromkeys(map(type, compress(nest.leaves, map(not_, nest.weak))))
    backends = {kind: backend_for(kind) or source.backend for kind in kinds}
    proper = [backend for kind, backend in backends.items() if not issubclass(kind, backend.scalar_types)]
    return from_arrays, nest, [*proper, *backends.values()]


def align(
    xs: Sequence[object], like: object, name: str | ModuleType | None, **keywords: object
) -> tuple[Array, ...]:
    """See `xbridge.align`."""
    return align_sources([resolve_source(x) for x in xs], "xs[{}]".format, like, name, **keywords)


def align_sources(
    sources: list[Source],
    place: Callable[[int], str],
    like: object,
    name: str | ModuleType | None,
    **keywords: object,
) -> tuple[Array, ...]:
    """Align inputs. `place` names one of them in an error."""
    target, options = choose_target(sources, like, name, **keywords)
    try:
        return tuple(index_errors(_align_one(source, target, options) for source in sources))
    except XBridgeError as error:
        raise error.at(place(error.index or 0)) from error


def _align_one(source: Source, target: Backend, options: Options) -> Array:
    """Convert an array or a list. A number adapts to any array, so it stays as it is."""
    if source.is_literal() and isinstance(source.array, (bool, int, float, complex)):
        return source.array
    fn, given, backends = _reader(source)
    return outside(fn, given, backends, target, options)


def choose_target(
    sources: list[Source], like: object, name: str | ModuleType | None, **keywords: object
) -> tuple[Backend, Options]:
    """Return the backend for all inputs, and the options with the device for all.

    An explicit name or device goes before `like`, and `like` before the first array. Without a device, the
    first array of the target decides, else the first array.
    """
    first = leading_index(sources) if like is None else None
    leading = [sources[first]] if first is not None else [] if like is None else [resolve_like(like)]
    target = get(name) if name is not None else leading[0].backend if leading else get(HOST)
    options = read_options((target,), **keywords)
    if options.device is None and leading and not target.host_only:
        own = [source for source in (*leading, *sources) if source.backend is target]
        near = import_source((own or leading)[0]).info().device
        options = options._replace(device=destination(target, None, near))
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
            "compare the memory of these arrays", "one of them lies on several devices", "its parts"
        )
    if one != other:
        return False
    return _host.overlap(*(source.backend.memory_layout(source.array) for source in sources))
