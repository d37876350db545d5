"""Reports on the differences between two arrays.

An array is read once into a `Look`, so that it can be compared with a later one. The values are read by the
library's own means, never by a conversion, because assertions about conversions must not depend on them.
Different values that print the same are shown by their bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from xbridge.errors import DTypeError, UnsupportedArrayError, type_of, with_article
from xbridge.extend import DTYPES, HOST, backend_for, get_backend
from xbridge.testing._compare_values import same_bits, same_numbers, words
from xbridge.testing._raw_memory import in_place
from xbridge.testing.samples import samples_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from xbridge import Device
    from xbridge.protocol import Array, Backend, HostArray
    from xbridge.testing._compare_values import Bools

_SHOWN = 5
"""The number of differing values that are shown."""


class Look(NamedTuple):
    """The facts of an array that can be compared."""

    backend: str
    dtype: str
    device: Device
    shape: tuple[int, ...]
    grad: bool
    """True if the array requires grad."""
    values: HostArray

    @property
    def library(self) -> str:
        """The backend, or the one that it counts as."""
        return get_library(self.backend)

    def __str__(self) -> str:
        tracked = ", requires grad" if self.grad else ""
        return f"{self.backend} {self.dtype} array of shape {self.shape} on {self.device}{tracked}"


def get_library(backend: str) -> str:
    """Return the name of a backend, or of the one that it stands for."""
    return HOST if backend == "numpy_readonly" else backend


def resolve(x: Array, asked: str) -> tuple[Backend, Array]:
    """Return the backend of an array and the array, of a NumPy scalar as 0-d; raise if it cannot be read."""
    backend = backend_for(type(x))
    if backend is None:
        raise UnsupportedArrayError.build(
            f"{asked} {type_of(x)}",
            "it is not an array of a known library",
            "xbridge.asarray(x, like=y) with the array that it belongs to",
        )
    if isinstance(x, backend.scalar_types):
        backend, x = get_backend(HOST), np.asarray(x)
    dtype, refused = backend.array_info(x).dtype, backend.unsupported(x, leaving=True)
    asked = f"{asked} {with_article(backend.name)} {dtype} array"
    if refused:
        raise refused.error.build(asked, refused.reason, refused.hint)
    if dtype not in DTYPES:
        raise DTypeError.build(asked, "not every library could have its values")
    return backend, x


def look(x: Array) -> Look:
    """Read an array of any library."""
    return look_in(*resolve(x, "compare"))


def look_in(backend: Backend, x: Array) -> Look:
    """Return the facts about an array that a comparison needs, and a copy of its values."""
    info = backend.array_info(x)
    values = samples_of(backend.name).read(x)
    return Look(backend.name, info.dtype, info.device, tuple(info.shape), info.requires_grad, values)


def differences(
    a: Look,
    b: Look,
    info: Iterable[str],
    agree: Callable[[HostArray, HostArray], Bools],
    *,
    names: tuple[str, str] = ("actual", "expected"),
    explain: Callable[[HostArray, HostArray, Bools], list[str]] | None = None,
) -> list[str]:
    """Return the lines of the report on two arrays: none if the facts are equal and the values agree.

    Values are compared as NumPy broadcasts them, unless the shape is one of the facts and differs. The lines
    of `explain` follow the first few wrong values.
    """
    unlike = [fact for fact in info if _fact(a, fact) != _fact(b, fact)]
    lines = []
    if "shape" not in unlike:
        try:
            x, y = np.broadcast_arrays(a.values, b.values)
        except ValueError:
            unlike.append("shape")
        else:
            wrong = ~np.asarray(agree(x, y))
            if wrong.any():
                lines = _table(names, x, y, wrong) + (explain(x, y, wrong) if explain else [])
                unlike.append(f"{wrong.sum()} of {wrong.size} values")
    if not unlike:
        return []
    heads = [f"  {name:<{max(map(len, names))}}  {each}" for name, each in zip(names, (a, b), strict=True)]
    return [f"the arrays differ in {_listed(unlike)}:", *heads, *lines]


def _fact(a: Look, fact: str) -> object:
    return a.library if fact == "backend" else getattr(a, fact)


def fail_if(lines: list[str], what: str = "") -> None:
    """Raise an AssertionError with the lines, if there are any."""
    __tracebackhide__ = True
    if lines:
        raise AssertionError("\n".join([f"{what}:", *lines] if what else lines))


def _table(names: tuple[str, str], x: HostArray, y: HostArray, wrong: Bools) -> list[str]:
    """Return a table of the first few wrong values, under the names of the arrays."""
    rows = [("at", *names, "")]
    for index in np.argwhere(wrong)[:_SHOWN].tolist():
        a, b = x[*index, ...], y[*index, ...]
        rows.append((str(tuple(index)), str(a), str(b), _hint(a, b)))
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"  {i:<{wide[0]}}  {a:<{wide[1]}}  {b:<{wide[2]}}  {hint}".rstrip() for i, a, b, hint in rows]
    more = int(wrong.sum()) + 1 - len(rows)
    return [*lines, f"  and {more} more"] if more else lines


def _hint(a: HostArray, b: HostArray) -> str:
    """Return a description of the difference between two values that print the same."""
    if not same_numbers(a, b):
        return f"exactly {a.item()!r} and {b.item()!r}" if str(a) == str(b) else ""
    if same_bits(a, b):
        return ""
    what = "NaNs" if np.isnan(a) else "bits" if a else "zeros"
    return f"different {what}: {_hex(a)} and {_hex(b)}"


def _hex(value: HostArray) -> str:
    """Return the bits of a number, part by part."""
    parts = words(value)
    return " ".join(f"0x{int(part):0{2 * parts.itemsize}x}" for part in parts)


def _listed(things: list[str]) -> str:
    return " and ".join([", ".join(things[:-1]), things[-1]] if things[1:] else things)


# -- addresses -----------------------------------------------------------------------------------


def overlap(a: Array, b: Array) -> bool:
    """Return True if two arrays have a byte in common. No memory is read, so it may be that of a device."""
    entered = resolve(a, "locate"), resolve(b, "locate")
    one, other = (in_place(backend.memory_layout(x)) for backend, x in entered)
    return bool(np.shares_memory(one, other))


def places(*arrays: Array) -> list[str]:
    """Return a line on each array and its address range."""
    lines = []
    for backend, x in (resolve(array, "locate") for array in arrays):
        info, layout = backend.array_info(x), backend.memory_layout(x)
        low, high = (layout.address + end for end in layout.span())
        what = f"{backend.name} {info.dtype} array of shape {info.shape} on {info.device}"
        lines.append(f"  {what}: bytes {low:#x} to {high:#x}, strides {layout.strides}")
    return lines
