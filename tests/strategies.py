"""Hypothesis strategies for host arrays and options: every dtype, shape, layout and bit pattern.

An array is laid out as opaque items of its size, then viewed as its dtype, so that no cast, comparison or
byte swap stands between the drawn bits and the test. Its contents are pseudo-random bits, mixed with those
where mistakes hide: zeros of both signs, infinities, quiet and signalling NaNs, the ends of each range.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

import hypothesis.extra.numpy as hnp
import numpy as np
from hypothesis import note
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from xbridge._dtypes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rawmemory import Host

    Shape: TypeAlias = tuple[int, ...]
    Fresh: TypeAlias = Callable[[Shape], Host]

EXTENDED = tuple(word for word in DTYPES if not hasattr(np, word))
"""The dtypes that NumPy has through ml_dtypes."""

HOST_DTYPES = tuple(word for word in DTYPES if word not in EXTENDED or find_spec("ml_dtypes"))
ALIASES = ("longlong", "ulonglong")
"""NumPy's second names of its 64-bit integers, which are dtypes of their own."""


def host_dtype(word: str) -> np.dtype[Any]:
    """NumPy's dtype of a canonical name."""
    if word in EXTENDED:
        import ml_dtypes

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, word))
        return extended
    return np.dtype(word)


def contents(word: str, shape: Shape, rng: np.random.Generator) -> Host:
    """A dense native array of any bits that are values of the dtype."""
    dtype = host_dtype(word)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    parts = 2 if dtype.kind == "c" else 1
    part = np.dtype(f"f{dtype.itemsize // 2}") if parts == 2 else dtype
    code = np.dtype(f"u{part.itemsize}")
    count = int(np.prod(shape, dtype=int)) * parts
    drawn = rng.integers(0, np.iinfo(code).max, count, code, endpoint=True)
    special = np.array(_specials(part), code)
    drawn = np.where(rng.random(count) < 0.4, rng.choice(special, count), drawn)
    return drawn.view(dtype).reshape(shape)


def _specials(part: np.dtype[Any]) -> list[int]:
    """Bit patterns at the ends of a dtype's ranges."""
    sign = 1 << 8 * part.itemsize - 1
    ends = [0, 1, sign - 1, sign, sign + 1, 2 * sign - 1]
    if part.kind in "iu":
        return ends
    with np.errstate(all="ignore"):
        infinity = int(np.array(np.inf).astype(part).view(f"u{part.itemsize}"))
    around = [infinity - 1, infinity, infinity + 1, infinity ^ sign]
    return [*ends, *(pattern % (2 * sign) for pattern in around)]


# -- layouts -------------------------------------------------------------------------------------


def every(part: slice, shape: Shape) -> tuple[Any, ...]:
    """The same part of each axis; never a scalar."""
    return (..., *(part for _ in shape))


def _every_second(fresh: Fresh, shape: Shape) -> Host:
    view: Host = fresh(tuple(2 * n for n in shape))[every(slice(None, None, 2), shape)]
    return view


def _behind_first(fresh: Fresh, shape: Shape) -> Host:
    view: Host = fresh(tuple(n + 1 for n in shape))[every(slice(1, None), shape)]
    return view


def _backwards(fresh: Fresh, shape: Shape) -> Host:
    view: Host = fresh(shape)[every(slice(None, None, -1), shape)]
    return view


def _broadcast(fresh: Fresh, shape: Shape) -> Host:
    base = fresh(tuple(n if axis % 2 else min(n, 1) for axis, n in enumerate(shape)))
    return as_strided(base, shape, tuple(s if axis % 2 else 0 for axis, s in enumerate(base.strides)))


def _overlapping(fresh: Fresh, shape: Shape) -> Host:
    base = fresh((sum(shape) + 1,))
    return as_strided(base, shape, base.strides * len(shape))


def _beside_padding(fresh: Fresh, shape: Shape) -> Host:
    """Strides that are no multiple of an item; of complex numbers, aligned ones."""
    items = fresh(shape)
    padding = f"V{max(items.itemsize // 2, 1)}"
    fields = np.zeros(shape, [("item", items.dtype), ("padding", padding)])
    fields["item"] = items
    return fields["item"]


def _unaligned(fresh: Fresh, shape: Shape) -> Host:
    items = fresh(shape)
    room = np.zeros(items.nbytes + 1, np.uint8)[1:].view(items.dtype).reshape(shape)
    room[...] = items
    return room


def _wild(fresh: Fresh, shape: Shape) -> Host:
    """No element, so any stride will do."""
    return as_strided(fresh(shape), shape, tuple((-1) ** n * (7 * n + 3) for n in range(len(shape))))


LAYOUTS: dict[str, Callable[[Fresh, Shape], Host]] = {
    "C": lambda fresh, shape: fresh(shape),
    "Fortran": lambda fresh, shape: np.asfortranarray(fresh(shape)).reshape(shape),
    "transposed": lambda fresh, shape: fresh(shape[::-1]).T,
    "strided": _every_second,
    "offset": _behind_first,
    "reversed": _backwards,
    "broadcast": _broadcast,
    "overlapping": _overlapping,
    "odd strides": _beside_padding,
    "unaligned": _unaligned,
    "byte-swapped": lambda fresh, shape: fresh(shape),
}


def shapes() -> st.SearchStrategy[Shape]:
    """Shapes of few elements, 0-d and empty ones among them."""
    full = hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=3)
    return full | full | full | hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=3)


def seeds() -> st.SearchStrategy[np.random.Generator]:
    """Sources of bits, each told by a small number."""
    return st.integers(0, 2**16).map(np.random.default_rng)


@st.composite
def host_arrays(
    draw: st.DrawFn,
    dtypes: Sequence[str] = (*HOST_DTYPES, *ALIASES),
    layouts: Sequence[str] = tuple(LAYOUTS),
    writable: tuple[bool, ...] = (True, False),
) -> Host:
    """NumPy arrays of any bits."""
    word, shape, rng = draw(st.sampled_from(dtypes)), draw(shapes()), draw(seeds())
    layout = draw(st.sampled_from([*layouts, "wild"] if 0 in shape else layouts))
    dtype = host_dtype(word)

    def fresh(shape: Shape) -> Host:
        return contents(word, shape, rng).view(f"V{dtype.itemsize}")

    items = {**LAYOUTS, "wild": _wild}[layout](fresh, shape)
    array = items.view(dtype.newbyteorder() if layout == "byte-swapped" else dtype)
    array.flags.writeable = draw(st.sampled_from(writable))
    note(f"{layout} {array.dtype} {array.shape} {array.strides} {array.flags.num:#x}")
    return array


# -- options -------------------------------------------------------------------------------------


def options(dtypes: Sequence[str] = HOST_DTYPES) -> st.SearchStrategy[dict[str, Any]]:
    """Options of `to_backend`, any with any other."""
    return st.fixed_dictionaries(
        {},
        optional={
            "device": st.sampled_from([None, "cpu"]),
            "dtype": st.sampled_from([None, "default", *dtypes]),
            "copy": st.sampled_from([None, True, False]),
            "grad": st.sampled_from([None, "keep", "detach"]),
        },
    )
