"""The verbs users call, and the hot path.

A plain array takes two look-ups by type and name, the few flag reads that the contract needs, and the
library's own zero-copy call. With any doubt or any option, the conversion is planned from facts
(`_plan.py`), and only then is anything more imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xbridge._registry import backend_for, by_name, by_type, get, plain
from xbridge.backends import HOST
from xbridge.errors import UnsupportedArrayError

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Literal, TypeAlias

    from xbridge._devices import Device
    from xbridge._protocol import Array, Backend, HostArray

    Grad: TypeAlias = Literal["keep", "detach"] | None


def to_backend(
    x: Array,
    backend: str,
    /,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
) -> Array:
    if device is None and dtype is None and copy is None and grad is None and type(backend) is str:
        source = plain.get(type(x))
        target = by_name.get(backend)
        if source is not None and target is not None:
            if source is target:
                return x
            host = source.peek(x)
            if host is not None:
                y = target.adopt(host)
                if y is not None:
                    return y
    from xbridge import _planned  # noqa: PLC0415 -- it imports NumPy

    return _planned.to_backend(x, backend, device=device, dtype=dtype, copy=copy, grad=grad)


def to_numpy(
    x: Array,
    /,
    *,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
) -> HostArray:
    if dtype is None and copy is None and grad is None:
        source = plain.get(type(x))
        if source is not None:
            host = source.peek(x)
            if host is not None:
                return host
    from xbridge import _planned  # noqa: PLC0415 -- it imports NumPy

    result: HostArray = _planned.to_backend(x, HOST, device=None, dtype=dtype, copy=copy, grad=grad)
    return result


def asarray(
    obj: Array,
    /,
    *,
    like: Array | None = None,
    backend: str | None = None,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    requires_grad: bool | None = None,
) -> Array:
    from xbridge import _planned  # noqa: PLC0415 -- it imports NumPy

    return _planned.asarray(
        obj,
        like,
        backend,
        device=device,
        dtype=dtype,
        copy=copy,
        grad=grad,
        requires_grad=requires_grad,
    )


def align(
    *xs: Array,
    like: Array | None = None,
    backend: str | None = None,
    device: object = None,
    copy: bool | None = None,
    grad: Grad = None,
) -> tuple[Array, ...]:
    from xbridge import _planned  # noqa: PLC0415 -- it imports NumPy

    return _planned.align(xs, like, backend, device=device, dtype=None, copy=copy, grad=grad)


def to_list(x: Array, /) -> Any:
    from xbridge import _planned  # noqa: PLC0415 -- it imports NumPy

    return _planned.to_list(x)


def backend_of(x: Array, /) -> str:
    try:
        return by_type[type(x)].name
    except KeyError:
        return _owner(x).name


def device_of(x: Array, /) -> Device:
    return _owner(x).describe(x).device


def dtype_of(x: Array, /) -> str:
    return _owner(x).describe(x).dtype


def array_namespace(*xs: Array) -> ModuleType:
    rooms = {type(x): _owner(x) for x in xs if not isinstance(x, (bool, int, float, complex))}
    names = dict.fromkeys(room.name for room in rooms.values())
    if len(names) != 1:
        raise UnsupportedArrayError.because(
            "find one namespace",
            f"the arrays come from {' and '.join(names) or 'nowhere'}",
            "align(*xs) first",
        )
    return get(*names).namespace(xs[0])


def shares_memory(a: Array, b: Array, /) -> bool:
    from xbridge import _planned  # noqa: PLC0415 -- it imports NumPy

    return _planned.shares_memory(a, b)


def _owner(x: Array) -> Backend:
    room = backend_for(type(x))
    if room is None:
        raise UnsupportedArrayError.because(
            f"name the backend of a {type(x).__name__}", "no backend owns that type", "asarray(x)"
        )
    return room
