"""A pretend array library with a bit of everything: what a backend can get wrong, its backend can.

A tile lies on strided memory, negates and conjugates lazily, may be read-only, records history, and lives on
the host or on one of two devices whose memory is of no use to anybody else: every bit there is inverted.
"""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    Host = np.ndarray[Any, np.dtype[Any]]

PLACES = ("host", "attic", "cellar")
LIBRARY_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


class Stone(NamedTuple):
    """A dtype of the library."""

    name: str


class Spot(NamedTuple):
    """A device of the library."""

    place: str


_ids = count()


class Tile:
    """An array of the library."""

    def __init__(
        self,
        memory: Host,
        *,
        place: str = "host",
        neg: bool = False,
        conj: bool = False,
        writable: bool = True,
        parents: tuple[Tile, ...] | None = None,
    ) -> None:
        self.id = next(_ids)
        self.memory = memory
        self.place = place
        self.neg = neg
        self.conj = conj
        self.writable = writable and memory.flags.writeable
        self.parents = parents

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.memory.shape)

    @property
    def dtype(self) -> Stone:
        return Stone(self.memory.dtype.name)

    @property
    def device(self) -> Spot:
        return Spot(self.place)

    @property
    def tracked(self) -> bool:
        """No parents are a leaf's, None is nobody's."""
        return self.parents is not None

    def values(self) -> Host:
        """A new dense array of what the tile holds, bit for bit."""
        dense: Host = np.array(self.memory, order="C", subok=False)
        if self.place != "host":
            dense = inverted(dense)
        if self.neg:
            _flip(dense, imaginary_only=False)
        if self.conj and dense.dtype.kind == "c":
            _flip(dense, imaginary_only=True)
        return dense

    def write(self, values: Host) -> None:
        """Change every element."""
        if not self.writable:
            raise ValueError("the tile is glazed")
        if self.tracked:
            raise RuntimeError("somebody follows the tile")
        new = Tile(np.array(values, order="C", subok=False), neg=self.neg, conj=self.conj).values()
        opaque = f"V{new.itemsize}"
        self.memory.view(opaque)[...] = (inverted(new) if self.place != "host" else new).view(opaque)

    def like(self, memory: Host, *sources: Tile) -> Tile:
        """A new tile in the same place, made of this one."""
        follow = [tile for tile in (sources or (self,)) if tile.tracked]
        raw = inverted(memory) if self.place != "host" else memory
        return Tile(raw, place=self.place, parents=tuple(follow) if follow else None)

    def __mul__(self, other: Tile) -> Tile:
        return self.like(self.values() * other.values(), self, other)

    def ancestors(self) -> set[int]:
        """Everything that a gradient of the tile reaches."""
        found = {self.id}
        for parent in self.parents or ():
            found |= parent.ancestors()
        return found


def inverted(dense: Host) -> Host:
    """A copy with every bit the other way round, which is how the devices keep their memory."""
    other: Host = dense.copy("K")
    for part in (other.real, other.imag) if other.dtype.kind == "c" else (other,):
        words = part.view(f"u{part.itemsize}")
        np.invert(words, out=words)
    return other


def _flip(dense: Host, *, imaginary_only: bool) -> None:
    """Invert the signs."""
    if dense.dtype.kind in "iu":
        np.negative(dense, out=dense)
        return
    parts = 2 if dense.dtype.kind == "c" else 1
    words = dense.reshape(-1).view(f"u{dense.itemsize // parts}").reshape(-1, parts)
    words[:, 1 if imaginary_only else 0 :] ^= words.dtype.type(1 << 8 * words.itemsize - 1)


# -- its array API namespace ---------------------------------------------------------------------

DEFAULTS = {"b": "bool", "i": "int64", "f": "float32", "c": "complex64"}


def asarray(x: Any, /, *, dtype: Stone | None = None) -> Tile:
    host = np.array(x)
    return Tile(host.astype(dtype.name if dtype else DEFAULTS[host.dtype.kind]))


def _filled(value: float, shape: Any, dtype: Stone | None) -> Tile:
    return Tile(np.full(shape, value, dtype.name if dtype else "float32"))


namespace: Any = SimpleNamespace(
    asarray=asarray,
    empty=lambda shape, *, dtype=None: _filled(0, shape, dtype),
    zeros=lambda shape, *, dtype=None: _filled(0, shape, dtype),
    ones=lambda shape, *, dtype=None: _filled(1, shape, dtype),
    reshape=lambda x, shape: x.like(x.values().reshape(shape)),
    astype=lambda x, dtype: x.like(x.values().astype(dtype.name)),
    permute_dims=lambda x, axes: x.like(x.values().transpose(axes).copy()),
    sum=lambda x: x.like(x.values().sum(keepdims=False)[...]),
    **{word: Stone(word) for word in LIBRARY_DTYPES},
)
