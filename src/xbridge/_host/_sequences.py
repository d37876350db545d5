"""Read numbers, and nested lists of numbers and arrays.

Numbers become one host array by NumPy's rules, except where NumPy would round an integer without a word.
Arrays in a list are found without being touched, so that whoever stacks them can do it in one pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from xbridge._dtypes import exact_integers
from xbridge._host._memory import native_dtype
from xbridge.errors import DTypeError, OptionError, UnsupportedArrayError, ValueLossError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge._protocol import HostArray

Nested: TypeAlias = Any
"""A number, an array, or a list, tuple or range of nested things."""

_SEQUENCES = (list, tuple, range)
_NUMBERS = (bool, int, float, complex)
_DEEPEST = 64


class Nest(NamedTuple):
    """Arrays at one depth of a nested list, in order, and the shape of the list above them."""

    shape: tuple[int, ...]
    leaves: list[Any]
    weak: list[bool]
    """Which leaves are Python numbers, as host arrays: they bend to the others' dtype."""


def is_literal(x: object) -> bool:
    """Whether `x` is a number or a sequence, and no array."""
    return isinstance(x, (*_NUMBERS, *_SEQUENCES)) and not isinstance(x, np.generic)


def is_nest(x: Nested) -> bool:
    """Whether arrays lie somewhere in `x`."""
    return _depth(x) is not None


def nest(x: Nested) -> Nest:
    """Lay out the arrays in `x`."""
    depth = _depth(x) or 0
    leaves: list[Any] = []
    shape = _collect(x, depth, leaves)
    weak = [is_literal(leaf) for leaf in leaves]
    leaves = [literal(leaf, None) if soft else leaf for leaf, soft in zip(leaves, weak, strict=True)]
    return Nest(shape, leaves, weak)


def literal(x: Nested, floating: str | None) -> HostArray:
    """Numbers as one host array, of NumPy's choice of dtype.

    Where `floating` is given, integers among floats must be exact in that dtype.
    """
    try:
        host = np.array(x)
    except ValueError as error:
        raise _ragged(str(error)) from error
    if host.dtype.kind not in "biufc":
        if host.dtype.kind == "O" and all(isinstance(n, int) for n in host.flat):
            raise _too_large()
        raise UnsupportedArrayError.because(
            "make an array of this list", "not all of it are numbers", "a list of numbers or arrays"
        )
    if host.dtype.kind in "fc":
        _check_integers(x, host, floating)
    return host


def promote(names: list[str], weak: list[HostArray]) -> str:
    """The dtype of a list of arrays: as NumPy promotes, Python numbers being weak."""
    samples = [leaf.dtype.type(0).item() for leaf in weak]
    try:
        return np.result_type(*map(native_dtype, names), *samples).name
    except TypeError as error:
        raise DTypeError.because(
            f"stack arrays of {' and '.join(dict.fromkeys(names))}",
            "they have no common dtype",
            "dtype='float32'",
        ) from error


def _check_integers(x: Nested, host: HostArray, floating: str | None) -> None:
    """Refuse to round an integer that stands in a list: NumPy turns [-1, 2**63] into floats."""
    limit = exact_integers(floating or "float64")[1]
    if host.size == 0 or bool((np.abs(host) < limit).all()):
        return
    numbers = list(_flat(x))
    if all(isinstance(n, int) for n in numbers):
        raise _too_large()
    if floating and any(isinstance(n, int) and abs(n) > limit for n in numbers):
        raise ValueLossError.because(
            f"make a {floating} array of this list",
            f"it would round an integer beyond {limit}",
            "dtype='float64' to say that it may be rounded",
        )


def _flat(x: Nested) -> Iterator[Any]:
    if isinstance(x, _SEQUENCES):
        for item in x:
            yield from _flat(item)
    else:
        yield x


def _depth(x: Nested, level: int = 0) -> int | None:
    """How many lists lie above the deepest array in `x`; None if there is no array."""
    if not is_literal(x):
        return None if isinstance(x, str | None) else level
    if not isinstance(x, _SEQUENCES) or set(map(type, x)) <= set(_NUMBERS):
        return None
    if level == _DEEPEST:
        raise _ragged(f"it is nested more than {_DEEPEST} deep, or contains itself")
    return max((d for item in x if (d := _depth(item, level + 1)) is not None), default=None)


def _collect(x: Nested, depth: int, leaves: list[Any]) -> tuple[int, ...]:
    """Append what lies `depth` lists deep; the shape of those lists."""
    if depth == 0:
        leaves.append(x)
        return ()
    if is_literal(x) and not isinstance(x, _SEQUENCES):
        raise _ragged("a number stands beside a list")
    if not isinstance(x, _SEQUENCES) and not getattr(x, "shape", ()):
        raise _ragged("it holds arrays and numbers at different depths")
    shapes = {_collect(item, depth - 1, leaves) for item in x}
    if len(shapes) > 1:
        raise _ragged("its rows differ in length")
    return (len(x), *shapes.pop()) if shapes else (0,)


def _ragged(why: str) -> OptionError:
    return OptionError.because("make an array of this list", why, "rows of one length")


def _too_large() -> ValueLossError:
    return ValueLossError.because(
        "make an array of this list",
        "its integers fit no integer dtype together",
        "floats instead, such as float(n)",
    )
