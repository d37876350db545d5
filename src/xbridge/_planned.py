"""The verbs off the hot path: read the options, then convert, align, list or compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xbridge import _host
from xbridge._conversion import convert, enter
from xbridge._devices import CPU
from xbridge._dtypes import DTYPES
from xbridge._nested import from_members, from_numbers, members_of
from xbridge._plan import Request
from xbridge._registry import backend_for, get
from xbridge._request import read_request, with_requires_grad
from xbridge.backends import HOST
from xbridge.errors import CopyError, DTypeError

if TYPE_CHECKING:
    from xbridge._conversion import Guest
    from xbridge._protocol import Array, Backend


def to_backend(x: object, name: str, **options: object) -> Array:
    """See `xbridge.to_backend`."""
    target = get(name)
    source = backend_for(type(x))
    if source is None or source is target:
        return _to_backend(x, target, source, options)
    options["traced"] = source.tracing() or target.tracing()
    return target.outside(source.outside(_to_backend))(x, target, source, options)


def _to_backend(x: object, target: Backend, source: Backend | None, options: dict[str, Any]) -> Array:
    request = read_request((target, source) if source else (target,), **options)
    return convert(enter(x, must_share=request.copy is False), target, request)


def asarray(
    obj: object, like: object, name: str | None, *, grad: object, requires_grad: object, **options: object
) -> Array:
    """See `xbridge.asarray`."""
    options["grad"] = with_requires_grad(grad, requires_grad)
    options["track"] = requires_grad is True
    if like is not None:
        model = enter(like)
        name = model.room.name if name is None else name
        if options["device"] is None and name == model.room.name:
            options["device"] = model.facts().device
    source = backend_for(type(obj))
    if source is None and _host.is_literal(obj):
        return _from_nested(obj, name, options)
    if name is None:
        name = source.name if source else HOST
    return to_backend(obj, name, **options)


def _from_nested(obj: object, name: str | None, options: dict[str, Any]) -> Array:
    members = members_of(obj)
    if members is None:
        target = get(HOST if name is None else name)
        return from_numbers(obj, target, read_request((target,), **options))
    target = get(name) if name is not None else members.first
    return from_members(members, target, read_request((target, members.first), **options))


def align(xs: tuple[object, ...], like: object, name: str | None, **options: object) -> tuple[Array, ...]:
    """See `xbridge.align`."""
    arrays = [enter(x) for x in xs if not _is_number(x)]
    models = ([enter(like)] if like is not None else []) + arrays
    if not models:
        return xs
    target = models[0].room if name is None else get(name)
    if options["device"] is None:
        options["device"] = _common_device(models, target)
    return tuple(x if _is_number(x) else to_backend(x, target.name, **options) for x in xs)


def _common_device(models: list[Guest], target: Backend) -> object:
    """The first array of the target's library says where; else the first array does."""
    if target.host_only:
        return None
    own = [model for model in models if model.room is target]
    return (own or models)[0].facts().device


def _is_number(x: object) -> bool:
    return isinstance(x, (bool, int, float, complex)) and backend_for(type(x)) is None


def to_list(x: object) -> Any:
    """See `xbridge.to_list`."""
    guest, host = enter(x)._replace(foreign=True), get(HOST)
    dtype = guest.facts().dtype
    request = Request(dtype="float32" if dtype in DTYPES and host.lacks(dtype, CPU) else None)
    listed = convert(guest, host, request)
    if host.describe(listed).dtype not in DTYPES:
        raise DTypeError.because(
            f"list an array of {dtype}", "Python has no such numbers", "dtype='float64' with to_numpy"
        )
    return listed.tolist()


def shares_memory(a: object, b: object) -> bool:
    """See `xbridge.shares_memory`."""
    try:
        guests = [enter(x, must_share=True) for x in (a, b)]
    except CopyError:
        return False
    if guests[0].facts().device != guests[1].facts().device:
        return False
    return _host.overlap(*(guest.room.layout(guest.array) for guest in guests))
