"""What the test kit is told of the pretend library in `kit_toy.py`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from inside import category, is_inexact
from kit_toy import PLACES, Tile, inverted

from xbridge.testing.samples import LayoutCase

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit_toy import Host

    from xbridge import Device

Shape = tuple[int, ...]


class Floor(Tile):
    """What a user of the library makes of a tile."""


def read(x: Tile, /) -> Host:
    return x.values()


def write(x: Tile, /) -> None:
    values = x.values()
    raw = values.reshape(-1).view(np.uint8)
    raw ^= 1 if values.dtype == np.bool_ else 0xFF
    x.write(values)


def reaches(y: Tile, x: Tile, /) -> bool:
    return y is not x and x.id in y.ancestors()


def _tile(values: Host, step: int = 1, *, neg: bool = False, conj: bool = False) -> Tile:
    """A tile of every so many items of new memory, with its values under pending flags."""
    under = Tile(values.copy(), neg=neg, conj=conj).values()
    shape = tuple(step * n for n in values.shape)
    memory = np.full(shape, b"\xa5" * values.itemsize, f"V{values.itemsize}")[_every(step, shape)]
    memory[...] = under.view(memory.dtype)
    return Tile(memory.view(values.dtype), neg=neg, conj=conj)


def _every(step: int, shape: Shape) -> tuple[Any, ...]:
    return (..., *(slice(None, None, step) for _ in shape))


def _transposed(values: Host) -> Tile:
    return Tile(np.array(values.T, order="C").T)


def _reversed(values: Host) -> Tile:
    back = _every(-1, values.shape)
    return Tile(values[back].copy()[back])


def _repeated(values: Host) -> Tile:
    return Tile(np.broadcast_to(values[:1].copy(), values.shape))


def _negative(dtype: str, shape: Shape) -> bool:
    return category(dtype) in ("float", "complex")


def _leaf(x: Tile) -> Tile:
    return Tile(x.memory, place=x.place, neg=x.neg, conj=x.conj, parents=())


def _fixed(x: Tile) -> Tile:
    return Tile(x.memory, place=x.place, neg=x.neg, conj=x.conj, writable=False)


def _copied_leaf(values: Host) -> Tile:
    leaf = _leaf(Tile(values.copy()))
    return leaf.like(leaf.values())


def _there(make: Callable[[Host], Tile]) -> Callable[[Host, Device], Tile]:
    """The same way on another device, where every bit is inverted, and a sign that is flipped still is."""

    def make_on_device(values: Host, device: Device) -> Tile:
        tile = make(inverted(values))
        tile.place = PLACES[1 + (device.index or 0)]
        return tile

    return make_on_device


_plain = partial(LayoutCase, as_readonly=_fixed, require_grad=_leaf)
_followed = partial(LayoutCase, takes=lambda dtype, shape: is_inexact(dtype), tracked=True, writable=False)
_cases = {
    "dense": _plain(_tile),
    "strided": _plain(lambda values: _tile(values, 2)),
    "transposed": _plain(_transposed, takes=lambda dtype, shape: len(shape) > 1),
    "reversed": _plain(_reversed, takes=lambda dtype, shape: len(shape) > 0),
    "repeated": LayoutCase(
        _repeated,
        fold=lambda values: np.repeat(values[:1], len(values), 0),
        takes=lambda dtype, shape: len(shape) > 0 and shape[0] > 1 and 0 not in shape,
        writable=False,
        require_grad=_leaf,
    ),
    "read-only": LayoutCase(lambda values: _fixed(_tile(values)), writable=False, require_grad=_leaf),
    "neg": _plain(lambda values: _tile(values, neg=True), takes=_negative),
    "conj": _plain(
        lambda values: _tile(values, conj=True), takes=lambda dtype, shape: category(dtype) == "complex"
    ),
    "leaf": _followed(lambda values: _leaf(_tile(values))),
    "no leaf": _followed(_copied_leaf),
}

cases = {name: case._replace(make_on_device=_there(case.make)) for name, case in _cases.items()}

refused = {
    "words": lambda: Tile(np.array(["one", "two"])),
    "a broken tile": lambda: Tile(np.array([None, None])),
    "a floor": lambda: Floor(np.ones(2, "float32")),
}
