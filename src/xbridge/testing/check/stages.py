"""The stages of a check: plain arrays first, and then one property at a time.

A stage changes the values of a base, or how an array stores them. If a function fails with one property, and
not with plain arrays, then that property is the cause.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from xbridge._core.dtypes import nearest
from xbridge._host.memory import native_dtype
from xbridge._registry.registry import get
from xbridge.backends import HOST
from xbridge.testing._call import Call, describe
from xbridge.testing._outcome import is_panic
from xbridge.testing._source import ON_REQUEST, properties_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge._core.devices import Device
    from xbridge._core.protocol import HostArray
    from xbridge.testing._source import Recipe
    from xbridge.testing.check.signatures import Base
    from xbridge.testing.check.targets import Target

    Change = Callable[[int, HostArray], HostArray]
    """New values of an array, by its number among the arguments."""

_OPTIONS = {"dtype": "same", "rtol": None, "ulp": None, "errors": True, "warnings": False}
_KIND_OF_DTYPE = {**_OPTIONS, "dtype": "kind"}
_ANY_DTYPE = {**_OPTIONS, "dtype": "any"}


class Stage(NamedTuple):
    """A call with one property."""

    group: str
    """`plain`, `shape`, `dtype`, `values`, `layout` or `device`."""
    label: str
    call: Call


def plain(target: Target, base: Base, backend: str) -> Call:
    """Return the call of a base with plain arrays of a backend."""
    call = Call(
        target.function,
        tuple(map(describe, base.args)),
        {k: describe(v) for k, v in base.kwargs.items()},
        target.reference,
    )
    is_float = all(one.values.dtype.kind in "fc" for one in call.recipes())
    options = _OPTIONS if is_float else _KIND_OF_DTYPE
    call = call._replace(options=options, setup=target.setup, path=target.place)
    if target.code:
        call = call._replace(setup=(*target.setup, target.code), path=None)
    return call.map(lambda one: _fit(one._replace(backend=backend)))


def _fit(recipe: Recipe) -> Recipe:
    """Cast the values to the nearest dtype that the library has."""
    name = nearest(recipe.values.dtype.name, lambda word: not unsupported(recipe, word))
    return recipe._replace(values=recipe.values.astype(native_dtype(name)))


def unsupported(recipe: Recipe, dtype: str) -> bool:
    """Return True if the library does not have a dtype on the device."""
    return get(recipe.backend).unsupported_dtype(dtype, recipe.device) is not None


def with_values(call: Call, change: Change) -> Call:
    """Return the call with other values; the change is also given the number of the array."""
    return call.fill(
        one._replace(values=np.ascontiguousarray(change(n, one.values)).reshape(change(n, one.values).shape))
        for n, one in enumerate(call.recipes())
    )


def stages(call: Call, devices: tuple[Device, ...], *, is_first: bool) -> Iterator[Stage]:
    """Yield the calls with one property more than a plain one.

    Parameters
    ----------
    call : Call
        With plain arrays.
    devices : tuple of Device
        Devices that are not the default one.
    is_first : bool
        True for the base without optional arguments, which has all stages.
    """
    for device in devices:
        moved = call.map(lambda one, device=device: one._replace(device=device))  # type: ignore[misc] # bound
        yield Stage("device", "another device", moved)
    for label, change in _VALUES.items():
        changed = with_values(call, change)
        if not is_same(changed, call) and (is_first or label == "NaN"):
            yield Stage("values", label, changed)
    for label, change in _DTYPES.items():
        changed = with_values(call, change)._replace(
            options=call.options if label in ("float16", "float32") else _KIND_OF_DTYPE
        )
        if not is_same(changed, call) and (is_first or label == "float32"):
            yield Stage("dtype", label, changed)
    if is_first:
        for label, change in _SHAPES.items():
            yield Stage("shape", label, with_values(call, change))
    for name in properties_of(call.promise.backend):
        if name not in ON_REQUEST and (is_first or name in ("transposed", "neg", "reversed")):
            yield from _laid_out(call, name)


def _laid_out(call: Call, name: str) -> Iterator[Stage]:
    """Yield the first of the call and its forms with more axes whose arrays can have a layout.

    The form with another axis before all others follows, and of a call with several arrays, the forms in
    which one alone has more axes.
    """
    whole: list[Change] = [lambda _, v: v, _with_axes(2), _with_axes(3)]
    if name in ("broadcast", "expanded"):
        whole = [_folded]
    elif name == "transposed column":
        whole = [_column]
    batch: list[Change] = [] if is_same(with_values(call, _batched), call) else [_batched]
    single = [_only(_with_axes(2), number) for number in range(len(call.recipes()))]
    for forms in (whole, batch, *([form] for form in single if len(single) > 1)):
        for form in forms:
            formed = with_values(call, form)
            if any(one.takes(name) for one in formed.recipes()) and formed.expected().error is None:
                yield Stage("layout", name, formed.map(partial(_with, name=name)))
                break


def _with(recipe: Recipe, *, name: str) -> Recipe:
    return recipe._replace(properties=(*recipe.properties, name)) if recipe.takes(name) else recipe


def is_same(one: Call, other: Call) -> bool:
    """Return True if two calls have the same values."""
    pairs = zip(one.recipes(), other.recipes(), strict=True)
    return all(
        a.values.dtype == b.values.dtype
        and a.values.shape == b.values.shape
        and a.values.tobytes() == b.values.tobytes()
        for a, b in pairs
    )


# -- values --------------------------------------------------------------------------------------


def _is_float(values: HostArray) -> bool:
    return values.dtype.kind in "fc"


def _set(number: float, which: int, place: slice) -> Change:
    """Return a change that sets elements of one array."""

    def change(index: int, values: HostArray) -> HostArray:
        if index != which or not _is_float(values):
            return values
        changed = values.copy()
        changed.reshape(-1)[place] = number
        return changed

    return change


def _folded(_index: int, values: HostArray) -> HostArray:
    return np.broadcast_to(values[:1], values.shape).copy() if values.ndim else values


def _rows(values: HostArray) -> HostArray:
    return values.reshape(2, 3) if values.shape == (6,) else values


def _column(_index: int, values: HostArray) -> HostArray:
    """Add an axis of one element behind at least two others."""
    return _rows(values)[..., None]


def _batched(_index: int, values: HostArray) -> HostArray:
    """Add an axis before at least two others, with other floats, so that none are equal."""
    rows = _rows(values)
    return np.stack([rows, _times(0.9375)(0, rows[::-1])]) if rows.ndim > 1 else rows


def _equal(_index: int, values: HostArray) -> HostArray:
    return np.full(values.shape, values.reshape(-1)[0]) if values.size else values


def _times(number: float) -> Change:

    def change(_index: int, values: HostArray) -> HostArray:
        product: HostArray = np.multiply(values, number, dtype=values.dtype) if _is_float(values) else values
        return product

    return change


_LOWEST, _HIGHEST = slice(0, 1), slice(-1, None)
"""Where a number is put so that sorted values stay sorted."""

_VALUES: dict[str, Change] = {
    "NaN": _set(np.nan, 0, _HIGHEST),
    "NaN in the second array": _set(np.nan, 1, _HIGHEST),
    "only NaN": _set(np.nan, 0, slice(None)),
    "infinity": _set(np.inf, 0, _HIGHEST),
    "infinity in the second array": _set(np.inf, 1, _HIGHEST),
    "negative infinity": _set(-np.inf, 0, _LOWEST),
    "equal values": _equal,
    "zeros": _times(0.0),
    "negative numbers": _times(-3.0),
    "numbers above one": _times(40.0),
}


# -- dtypes and shapes ---------------------------------------------------------------------------


def _cast(dtype: str) -> Change:
    """Return a change to a dtype; numbers become small integers for an integer dtype."""

    def change(_index: int, values: HostArray) -> HostArray:
        if values.dtype.kind == "b" or (values.dtype.kind in "iu" and dtype.startswith(("float", "complex"))):
            return values
        if values.dtype.kind == "f" and not dtype.startswith(("float", "complex")):
            return np.asarray(np.ceil(values * 8).astype(dtype))
        return values.astype(dtype) if values.dtype.kind != "c" else values

    return change


def _mixed(index: int, values: HostArray) -> HostArray:
    return values.astype("float32") if index == 0 and values.dtype == np.float64 else values


_DTYPES: dict[str, Change] = {
    **{dtype: _cast(dtype) for dtype in ("float16", "float32", "int64", "int8", "uint8", "complex128")},
    "float32 and float64": _mixed,
}


def _only(change: Change, which: int) -> Change:
    """Return a change of one array."""
    return lambda index, values: change(index, values) if index == which else values


def _with_axes(count: int) -> Change:
    """Return a change that gives arrays of six elements, or of fewer axes, that many axes."""

    def change(_index: int, values: HostArray) -> HostArray:
        if values.shape == (6,):
            return values.reshape((2, 3) if count == 2 else (1, 2, 3))
        if (count, values.ndim) != (3, 2):
            return values
        stacked: HostArray = np.stack([values, values[::-1]])
        return stacked

    return change


_SHAPES: dict[str, Change] = {
    "no elements": lambda _, values: values[:0],
    "one element": lambda _, values: values[:1],
    "0-d": lambda _, values: values.reshape(-1)[:1].reshape(()),
    "two axes": _with_axes(2),
    "three axes": _with_axes(3),
    "broadcasting": lambda index, values: (
        values.reshape(-1)[:2].reshape(-1, 1) if index and values.size > 1 else values
    ),
}


def exists(stage: Stage) -> bool:
    """Return True if the library has the dtypes of a stage, and NumPy's call is no refusal."""
    recipes = stage.call.recipes()
    if any(unsupported(one, one.values.dtype.name) for one in recipes):
        return False
    error = stage.call.expected().error
    return error is None or is_panic(error)


def devices_of(backend: str) -> tuple[Device, ...]:
    """Return the first device of a backend that is not its default; the emulated one, if it is installed."""
    return get(backend).devices()[1:2] if backend != HOST else ()
