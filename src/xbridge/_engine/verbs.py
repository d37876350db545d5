"""The verbs off the hot path: read the options, then convert, align, list or compare.

Whatever leaves its library runs `outside` of what the libraries involved may be doing at the moment, such
as tracing a program. What stays within its library is part of that.
"""

from __future__ import annotations

from itertools import compress
from operator import not_
from typing import TYPE_CHECKING, Any

from xbridge import _host
from xbridge._core.devices import CPU, SHARDED
from xbridge._core.dtypes import DTYPES, instead, is_numeric
from xbridge._engine.convert import convert, convert_all, plan, resolve_source
from xbridge._engine.execute import observers
from xbridge._engine.stack import from_arrays, from_numbers
from xbridge._plan.options import read_options, with_requires_grad
from xbridge._plan.rules import destination
from xbridge._plan.steps import Conversion, Options, Plan
from xbridge.backends import HOST, _registry
from xbridge.backends._registry import backend_for, get, is_number
from xbridge.errors import (
    CopyError,
    DTypeError,
    OptionError,
    UnsupportedArrayError,
    XBridgeError,
    index_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend
    from xbridge._engine.convert import Source
    from xbridge._host import Nest


def to_backend(x: object, name: str | ModuleType, **keywords: object) -> Array:
    """See `xbridge.to_backend`."""
    target, source = get(name), _owner(x)
    return _apart(_to_backend, [source], target, keywords)(x, target, source, keywords)


def _to_backend(x: object, target: Backend, source: Backend, keywords: dict[str, Any]) -> Array:
    options = read_options((target, source), **keywords)
    fetch = target.host_only or options.device == CPU
    return convert(resolve_source(x, target, must_share=options.copy is False, fetch=fetch), target, options)


def to_backend_all(xs: list[object], name: str | ModuleType, **keywords: object) -> list[Array]:
    """`to_backend` for each of many, which cross together where they are small."""
    target, owners = get(name), [_owner(x) for x in xs]
    made: dict[int, Array] = {}
    for own in (True, False):
        chosen = [i for i, owner in enumerate(owners) if (owner is target) is own]
        backends, asked = [owners[i] for i in chosen], dict(keywords)
        all_of_them = _apart(_to_backend_all, backends, target, asked)
        try:
            made.update(
                zip(chosen, all_of_them([xs[i] for i in chosen], target, backends, asked), strict=True)
            )
        except XBridgeError as error:
            error.remap_index(chosen)
            raise
    return [made[i] for i in range(len(xs))]


def _to_backend_all(
    xs: list[object], target: Backend, sources: list[Backend], keywords: dict[str, Any]
) -> list[Array]:
    options = read_options((target, *dict.fromkeys(sources)), **keywords)
    fetch = target.host_only or options.device == CPU
    resolved = (resolve_source(x, target, must_share=options.copy is False, fetch=fetch) for x in xs)
    return convert_all(resolved, target, options)


def asarray(
    obj: object,
    like: object,
    name: str | ModuleType | None,
    *,
    grad: object,
    requires_grad: object,
    **keywords: object,
) -> Array:
    """See `xbridge.asarray`."""
    keywords["grad"] = with_requires_grad(grad, requires_grad)
    keywords["requires_grad"] = requires_grad is True
    name = None if name is None else get(name).name
    if like is not None:
        model = resolve_like(like)
        name = model.backend.name if name is None else name
        if keywords["device"] is None and name == model.backend.name:
            keywords["device"] = model.info().device
    if backend_for(type(obj)) is not None or not _host.is_literal(obj):
        return to_backend(obj, _owner(obj).name if name is None else name, **keywords)
    nest = _host.nest(obj)
    if nest is None:
        target = get(HOST if name is None else name)
        return _apart(_from_numbers, [get(HOST)], target, keywords)(obj, target, keywords)
    kinds = dict.fromkeys(map(type, compress(nest.leaves, map(not_, nest.weak))))
    backends = {cls: backend_for(cls) or get(HOST) for cls in kinds}
    sources = list(backends.values())
    proper = [backend for cls, backend in backends.items() if not issubclass(cls, backend.scalar_types)]
    first = (proper or sources)[0]
    target = first if name is None else get(name)
    return _apart(_from_arrays, sources, target, keywords)(nest, target, first, keywords)


def _from_numbers(obj: object, target: Backend, keywords: dict[str, Any]) -> Array:
    return from_numbers(obj, target, read_options((target,), **keywords))


def _from_arrays(nest: Nest, target: Backend, first: Backend, keywords: dict[str, Any]) -> Array:
    return from_arrays(nest, target, read_options((target, first), **keywords))


def align(
    xs: tuple[object, ...],
    like: object,
    name: str | ModuleType | None,
    place: Callable[[int], str] = "xs[{}]".format,
    **keywords: Any,
) -> tuple[Array, ...]:
    """See `xbridge.align`. `place` says of an error at which of them it was raised."""
    target = choose_target([x for x in xs if not _host.is_literal(x)], like, name, keywords)
    try:
        return tuple(index_errors(align_one(x, target.name, keywords) for x in xs))
    except XBridgeError as error:
        raise error.at(place(error.index or 0)) from error


def choose_target(
    arrays: list[object], like: object, name: str | ModuleType | None, keywords: dict[str, Any]
) -> Backend:
    """The backend for all of these arrays; `options` gets the device for all.

    An explicit name or device goes before `like`, and `like` before the first array. A device counts only
    with the library that it is a device of.
    """
    first = (
        [arrays[i] for i in [leading_index(arrays)] if i is not None]
        if like is None
        else [resolve_like(like).array]
    )
    target = get(name) if name is not None else _owner(first[0]) if first else get(HOST)
    read_options((target,), **keywords)
    if keywords["device"] is None and first and not target.host_only:
        keywords["device"] = destination(target, None, _common_device(first + arrays, target))
    return target


def leading_index(xs: Sequence[object]) -> int | None:
    """Which of them decides where all meet: the first array; a scalar of NumPy's if there is no other."""
    arrays = [i for i, x in enumerate(xs) if not _host.is_literal(x)]
    # No `next` with a default: the compiler of an older torch cannot follow it.
    proper = [i for i in arrays if not issubclass(type(xs[i]), _owner(xs[i]).scalar_types)]
    return (proper or arrays)[0] if arrays else None


def home(x: object) -> tuple[str, Device, str] | None:
    """Where an array came from: its backend, device and dtype. None for what is no array."""
    if _host.is_literal(x):
        return None
    source = resolve_source(x)
    info = source.info()
    return source.backend.name, info.device, info.dtype


def resolve_like(like: object) -> Source:
    """The array whose library and device are asked for."""
    try:
        return resolve_source(like)
    except UnsupportedArrayError as error:
        kind = type(like).__name__
        named: Any = like if _registry.is_available(like) else None  # type: ignore[arg-type] # any object
        hint = "like=None" if named is None else f"like=None, backend={get(named).name!r}"
        raise OptionError.build(f"take a {kind} as like", "it is no array", hint) from error


def align_one(x: object, name: str | ModuleType, keywords: dict[str, Any]) -> Array:
    """An array or a list as an array of that backend. A number adapts to any array as it is."""
    if not _host.is_literal(x):
        return to_backend(x, name, **keywords)
    return x if is_number(x) else asarray(x, None, name, requires_grad=None, **keywords)


def _common_device(models: list[object], target: Backend) -> Device:
    """The first array of the target's library says where; else the first array does."""
    own = [model for model in models if _owner(model) is target]
    return resolve_source((own or models)[0]).info().device


def to_list(x: object) -> Any:
    """See `xbridge.to_list`."""
    return _apart(_to_list, [_owner(x)], None, {})(x)


def _to_list(x: object) -> Any:
    source, host = resolve_source(x, fetch=True)._replace(foreign=True), get(HOST)
    dtype = source.info().dtype
    named = dtype if dtype in DTYPES else None  # in the host's byte order: not every dtype lists in both
    options = Options(dtype="float32" if named and host.unsupported_dtype(dtype, CPU) else named)
    listed = convert(source, host, options) if named or not is_numeric(dtype) else None
    if listed is None or host.array_info(listed).dtype not in DTYPES:
        raise DTypeError.build(
            f"list an array of {dtype}",
            "Python has no such numbers",
            f"to_numpy(x, {instead(dtype)}).tolist()",
        )
    return listed.tolist()


def explain(
    x: object, name: str | ModuleType, *, grad: object, requires_grad: object, **keywords: object
) -> Plan:
    """See `xbridge.explain`."""
    keywords["grad"] = with_requires_grad(grad, requires_grad)
    keywords["requires_grad"] = requires_grad is True
    target, source = get(name), _owner(x)
    found: Plan = _apart(_explain, [source], target, keywords)(x, target, source, keywords)
    return found


def _explain(x: object, target: Backend, source: Backend, keywords: dict[str, Any]) -> Plan:
    options = read_options((target, source), **keywords)
    given = _met(x, target)
    backend = given.backend
    try:
        if options.copy is False:
            resolve_source(x, target, must_share=True)
        found = plan(given, target, options).with_sizes(given.array)
        for observer in observers():
            observer.forbid(found)
    except XBridgeError as error:
        info = given.info()
        conversion = Conversion(backend, target, info, options, info.dtype, info.device)
        found = Plan(conversion, (), error=error.with_traceback(None))  # which would hold on to the array
    if backend.unsupported(given.array, leaving=True):
        return found
    layout = backend.memory_layout(given.array)
    # A scalar stands for a value, which lies nowhere.
    return found._replace(layout=layout._replace(address=0) if isinstance(x, source.scalar_types) else layout)


def _met(x: object, target: Backend) -> Source:
    """`x`, if it can be looked at where it is."""
    if backend_for(type(x)) is not None:
        return resolve_source(x)
    try:
        return resolve_source(x, target, must_share=True)
    except CopyError as error:
        raise UnsupportedArrayError.build(
            f"explain what becomes of a {type(x).__name__}",
            "it would have to copy or compute to show itself",
            "reading it first: asarray(x)",
        ) from error


def unsafe_share(x: object, name: str | ModuleType) -> Array:
    """See `xbridge.unsafe_share`."""
    target, source = get(name), _owner(x)
    return _apart(_unsafe_share, [source], target, {})(x, target)


def _unsafe_share(x: object, target: Backend) -> Array:
    source = resolve_source(x, target, must_share=True)
    result = convert(source, target, Options(copy=False, unsafe=True))
    layouts = (
        ()
        if source.backend is target
        else (source.backend.memory_layout(source.array), target.memory_layout(result))
    )
    if layouts and not any(layout.is_unallocated() for layout in layouts) and not _host.overlap(*layouts):
        raise CopyError.build(
            f"share this memory with {target.name}",
            f"{target.name} has copied it",
            f"to_backend(x, {target.name!r})",
        )
    return result


def shares_memory(a: object, b: object) -> bool:
    """See `xbridge.shares_memory`."""
    try:
        resolved = [resolve_source(x, must_share=True) for x in (a, b)]
    except CopyError:
        return False
    if SHARDED in [source.info().device for source in resolved]:
        raise UnsupportedArrayError.build(
            "compare the memory of these arrays", "one of them lies on several devices", "its parts"
        )
    if resolved[0].info().device != resolved[1].info().device:
        return False
    return _host.overlap(*(source.backend.memory_layout(source.array) for source in resolved))


def _owner(x: object) -> Backend:
    """The backend of an array; the host for what nobody owns, because there it comes in."""
    return backend_for(type(x)) or get(HOST)


def _apart(
    fn: Callable[..., Array], sources: list[Backend], target: Backend | None, keywords: dict[str, object]
) -> Callable[..., Array]:
    """`fn`, run outside of what its libraries are doing, unless all is within one library.

    Where one of them is tracing, the options are told, because the result will be traced again.
    """
    if not [source for source in sources if source is not target]:
        return fn
    backends: list[Backend] = []
    for backend in sources if target is None else [*sources, target]:
        if backend not in backends:
            backends.append(backend)
    tracing = [backend for backend in backends if backend.is_tracing()]
    if tracing:
        keywords["traced"] = True
        return tracing[0].untraced(fn)
    for backend in backends:
        fn = backend.untraced(fn)
    return fn
