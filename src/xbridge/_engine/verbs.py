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
from xbridge._core.dtypes import DTYPES, instead
from xbridge._engine.convert import convert, convert_all, enter, plan
from xbridge._engine.stack import from_arrays, from_numbers
from xbridge._inspect import is_number
from xbridge._plan.options import read_request, with_requires_grad
from xbridge._plan.rules import destination
from xbridge._plan.steps import Plan, Request, Route
from xbridge.backends import HOST, _registry
from xbridge.backends._registry import backend_for, get
from xbridge.errors import CopyError, DTypeError, OptionError, UnsupportedArrayError, XBridgeError, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend
    from xbridge._engine.convert import Guest
    from xbridge._host import Nest


def to_backend(x: object, name: str | ModuleType, **options: object) -> Array:
    """See `xbridge.to_backend`."""
    target, source = get(name), _owner(x)
    return _apart(_to_backend, [source], target, options)(x, target, source, options)


def _to_backend(x: object, target: Backend, source: Backend, options: dict[str, Any]) -> Array:
    request = read_request((target, source), **options)
    fetch = target.host_only or request.device == CPU
    return convert(enter(x, target, must_share=request.copy is False, fetch=fetch), target, request)


def to_backend_all(xs: list[object], name: str | ModuleType, **options: object) -> list[Array]:
    """`to_backend` for each of many, which cross together where they are small."""
    target, owners = get(name), [_owner(x) for x in xs]
    made: dict[int, Array] = {}
    for own in (True, False):
        chosen = [i for i, owner in enumerate(owners) if (owner is target) is own]
        rooms, asked = [owners[i] for i in chosen], dict(options)
        all_of_them = _apart(_to_backend_all, rooms, target, asked)
        try:
            made.update(zip(chosen, all_of_them([xs[i] for i in chosen], target, rooms, asked), strict=True))
        except XBridgeError as error:
            error.renumber(chosen)
            raise
    return [made[i] for i in range(len(xs))]


def _to_backend_all(
    xs: list[object], target: Backend, sources: list[Backend], options: dict[str, Any]
) -> list[Array]:
    request = read_request((target, *dict.fromkeys(sources)), **options)
    fetch = target.host_only or request.device == CPU
    guests = (enter(x, target, must_share=request.copy is False, fetch=fetch) for x in xs)
    return convert_all(guests, target, request)


def asarray(
    obj: object,
    like: object,
    name: str | ModuleType | None,
    *,
    grad: object,
    requires_grad: object,
    **options: object,
) -> Array:
    """See `xbridge.asarray`."""
    options["grad"] = with_requires_grad(grad, requires_grad)
    options["track"] = requires_grad is True
    name = None if name is None else get(name).name
    if like is not None:
        model = _model(like)
        name = model.room.name if name is None else name
        if options["device"] is None and name == model.room.name:
            options["device"] = model.facts().device
    if backend_for(type(obj)) is not None or not _host.is_literal(obj):
        return to_backend(obj, _owner(obj).name if name is None else name, **options)
    nest = _host.nest(obj)
    if nest is None:
        target = get(HOST if name is None else name)
        return _apart(_from_numbers, [get(HOST)], target, options)(obj, target, options)
    kinds = dict.fromkeys(map(type, compress(nest.leaves, map(not_, nest.weak))))
    rooms = {cls: backend_for(cls) or get(HOST) for cls in kinds}
    sources = list(rooms.values())
    first = next((room for cls, room in rooms.items() if not issubclass(cls, room.scalars)), sources[0])
    target = first if name is None else get(name)
    return _apart(_from_arrays, sources, target, options)(nest, target, first, options)


def _from_numbers(obj: object, target: Backend, options: dict[str, Any]) -> Array:
    return from_numbers(obj, target, read_request((target,), **options))


def _from_arrays(nest: Nest, target: Backend, first: Backend, options: dict[str, Any]) -> Array:
    return from_arrays(nest, target, read_request((target, first), **options))


def align(
    xs: tuple[object, ...],
    like: object,
    name: str | ModuleType | None,
    place: Callable[[int], str] = "xs[{}]".format,
    **options: Any,
) -> tuple[Array, ...]:
    """See `xbridge.align`. `place` says of an error at which of them it was raised."""
    target = meet([x for x in xs if not _host.is_literal(x)], like, name, options)
    try:
        return tuple(counted(_brought(x, target.name, options) for x in xs))
    except XBridgeError as error:
        raise error.at(place(error.which or 0)) from error


def meet(
    arrays: list[object], like: object, name: str | ModuleType | None, options: dict[str, Any]
) -> Backend:
    """The backend for all of these arrays; `options` gets the device for all.

    An explicit name or device goes before `like`, and `like` before the first array. A device counts only
    with the library that it is a device of.
    """
    first = [arrays[i] for i in [leader(arrays)] if i is not None] if like is None else [_model(like).array]
    target = get(name) if name is not None else _owner(first[0]) if first else get(HOST)
    read_request((target,), **options)
    if options["device"] is None and first and not target.host_only:
        options["device"] = destination(target, None, _common_device(first + arrays, target))
    return target


def leader(xs: Sequence[object]) -> int | None:
    """Which of them decides where all meet: the first array; a scalar of NumPy's if there is no other."""
    arrays = [i for i, x in enumerate(xs) if not _host.is_literal(x)]
    return next((i for i in arrays if not isinstance(xs[i], _owner(xs[i]).scalars)), next(iter(arrays), None))


def home(x: object) -> tuple[str, Device, str] | None:
    """Where an array came from: its backend, device and dtype. None for what is no array."""
    if _host.is_literal(x):
        return None
    guest = enter(x)
    facts = guest.facts()
    return guest.room.name, facts.device, facts.dtype


def _model(like: object) -> Guest:
    """The array whose library and device are asked for."""
    try:
        return enter(like)
    except UnsupportedArrayError as error:
        kind = type(like).__name__
        raise OptionError.because(
            f"take a {kind} as like", "it is no array", f"like=None, backend={HOST!r}"
        ) from error


def _brought(x: object, name: str | ModuleType, options: dict[str, Any]) -> Array:
    """An array or a list as an array of that backend. A number adapts to any array as it is."""
    if not _host.is_literal(x):
        return to_backend(x, name, **options)
    return x if is_number(x) else asarray(x, None, name, requires_grad=None, **options)


def _common_device(models: list[object], target: Backend) -> Device:
    """The first array of the target's library says where; else the first array does."""
    own = [model for model in models if _owner(model) is target]
    return enter((own or models)[0]).facts().device


def to_list(x: object) -> Any:
    """See `xbridge.to_list`."""
    return _apart(_to_list, [_owner(x)], None, {})(x)


def _to_list(x: object) -> Any:
    guest, host = enter(x, fetch=True)._replace(foreign=True), get(HOST)
    dtype = guest.facts().dtype
    named = dtype if dtype in DTYPES else None  # in the host's byte order: not every dtype lists in both
    request = Request(dtype="float32" if named and host.lacks(dtype, CPU) else named)
    listed = convert(guest, host, request)
    if host.describe(listed).dtype not in DTYPES:
        raise DTypeError.because(
            f"list an array of {dtype}",
            "Python has no such numbers",
            f"to_numpy(x, {instead(dtype)}).tolist()",
        )
    return listed.tolist()


def explain(
    x: object, name: str | ModuleType, *, grad: object, requires_grad: object, **options: object
) -> Plan:
    """See `xbridge.explain`."""
    options["grad"] = with_requires_grad(grad, requires_grad)
    options["track"] = requires_grad is True
    target, source = get(name), _owner(x)
    found: Plan = _apart(_explain, [source], target, options)(x, target, source, options)
    return found


def _explain(x: object, target: Backend, source: Backend, options: dict[str, Any]) -> Plan:
    request = read_request((target, source), **options)
    guest = _met(x, target)
    room = guest.room
    try:
        if request.copy is False:
            enter(x, target, must_share=True)
        found = plan(guest, target, request).told(guest.array)
        if _registry.watchers:
            from xbridge._observe import policy as _policy  # noqa: PLC0415 -- only while somebody watches

            _policy.forbid(found)
    except XBridgeError as error:
        facts = guest.facts()
        route = Route(room, target, facts, request, facts.dtype, facts.device)
        found = Plan(route, (), error=error.with_traceback(None))  # which would hold on to the array
    if room.refusal(guest.array, leaving=True):
        return found
    layout = room.layout(guest.array)
    # A scalar stands for a value, which lies nowhere.
    return found._replace(layout=layout._replace(address=0) if isinstance(x, source.scalars) else layout)


def _met(x: object, target: Backend) -> Guest:
    """`x`, if it can be looked at where it is."""
    if backend_for(type(x)) is not None:
        return enter(x)
    try:
        return enter(x, target, must_share=True)
    except CopyError as error:
        raise UnsupportedArrayError.because(
            f"explain what becomes of a {type(x).__name__}",
            "it would have to copy or compute to show itself",
            "reading it first: asarray(x)",
        ) from error


def unsafe_share(x: object, name: str | ModuleType) -> Array:
    """See `xbridge.unsafe_share`."""
    target, source = get(name), _owner(x)
    return _apart(_unsafe_share, [source], target, {})(x, target)


def _unsafe_share(x: object, target: Backend) -> Array:
    guest = enter(x, target, must_share=True)
    result = convert(guest, target, Request(copy=False, unsafe=True))
    layouts = () if guest.room is target else (guest.room.layout(guest.array), target.layout(result))
    if layouts and not any(layout.is_nowhere() for layout in layouts) and not _host.overlap(*layouts):
        raise CopyError.because(
            f"share this memory with {target.name}",
            f"{target.name} has copied it",
            f"to_backend(x, {target.name!r})",
        )
    return result


def shares_memory(a: object, b: object) -> bool:
    """See `xbridge.shares_memory`."""
    try:
        guests = [enter(x, must_share=True) for x in (a, b)]
    except CopyError:
        return False
    if SHARDED in [guest.facts().device for guest in guests]:
        raise UnsupportedArrayError.because(
            "compare the memory of these arrays", "one of them lies on several devices", "its parts"
        )
    if guests[0].facts().device != guests[1].facts().device:
        return False
    return _host.overlap(*(guest.room.layout(guest.array) for guest in guests))


def _owner(x: object) -> Backend:
    """The backend of an array; the host for what nobody owns, because there it comes in."""
    return backend_for(type(x)) or get(HOST)


def _apart(
    fn: Callable[..., Array], sources: list[Backend], target: Backend | None, options: dict[str, object]
) -> Callable[..., Array]:
    """`fn`, run outside of what its libraries are doing, unless all is within one library.

    Where one of them is tracing, the options are told, because the result will be traced again.
    """
    if not [source for source in sources if source is not target]:
        return fn
    rooms: list[Backend] = []
    for room in sources if target is None else [*sources, target]:
        if room not in rooms:
            rooms.append(room)
    tracing = [room for room in rooms if room.tracing()]
    if tracing:
        options["traced"] = True
        return tracing[0].outside(fn)
    for room in rooms:
        fn = room.outside(fn)
    return fn
