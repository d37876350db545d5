"""Strategy of arrays that are the arguments of one call.

The arrays of a call are of one device and of dtypes that the library combines. So a test of a function fails
because of the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from hypothesis import strategies as st

from xbridge.errors import OptionError
from xbridge.extend import DTYPES, category, get_backend
from xbridge.testing.strategies._arrays import arrays
from xbridge.testing.strategies._names import dtypes, read_device
from xbridge.testing.strategies._spec import SHAPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xbridge.protocol import Array

    Shape = tuple[int, ...]

_STANDARD = tuple(name for name, it in DTYPES.items() if not it.is_extended and name != "float16")


def xp_dtypes(backend: str, kinds: Iterable[str] | None = None) -> st.SearchStrategy[str]:
    """Strategy of the dtypes of the array API standard that a backend has at present.

    Parameters
    ----------
    backend : str
        Its name.
    kinds : str or iterable of str, optional
        As for `dtypes`.

    Returns
    -------
    SearchStrategy of str
        Canonical names. Of JAX without 64 bits, those of at most 32 bits.

    Raises
    ------
    XBridgeError
        As for `dtypes`.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(xp_dtypes("numpy", "int"), lambda dtype: True)
    'int64'
    """
    return dtypes(backend, kinds=kinds).filter(_STANDARD.__contains__)


def arrays_together(  # noqa: C901 -- each keyword is checked before anything is drawn
    backend: str,
    n: int | None = None,
    *,
    shapes: Literal["same", "broadcastable"] | Sequence[Shape] = "same",
    dtypes: st.SearchStrategy[str] | str = "same",
    kinds: Iterable[str] | None = None,
    devices: Any = None,
    **options: Any,
) -> st.SearchStrategy[tuple[Array, ...]]:
    """Strategy of several arrays of one library and one device, for one call.

    Parameters
    ----------
    backend : str
        The name of a backend.
    n : int, optional
        The number of arrays: by default 2, or the number of shapes that are given.
    shapes : {"same", "broadcastable"} or sequence of tuple of int
        Whether all have one shape, or shapes that broadcast; or the shape of each.
    dtypes : {"same", "promotable"}, str or strategy of str
        Whether all have one dtype, or dtypes of one kind that the standard promotes; or the dtype of all.
    kinds : str or iterable of str, optional
        The kinds of dtypes to choose from, as for `xp_dtypes`.
    devices : str, device object or strategy, optional
        The device of all, as for `arrays`.
    **options
        The other options of `arrays`, such as `layouts` and `elements`, for each array.

    Returns
    -------
    SearchStrategy of tuple of array
        Each array has a layout of its own.

    Raises
    ------
    OptionError
        The shapes and their number differ, or an option has another value.
    XBridgeError
        As for `arrays`.

    Examples
    --------
    >>> from hypothesis import find
    >>> pairs = arrays_together("numpy", 2, shapes="broadcastable")
    >>> x, y = find(pairs, lambda pair: pair[0].ndim > pair[1].ndim)
    >>> (x + y).shape == x.shape
    True
    """
    if not isinstance(dtypes, str | st.SearchStrategy):
        reason = "dtypes are 'same', 'promotable', a name, or a strategy of names"
        hint = "dtypes=st.sampled_from(['float32', 'float64'])"
        raise OptionError.build(f"draw arrays with dtypes={dtypes!r}", reason, hint)
    if not isinstance(shapes, str) and any(isinstance(shape, int) for shape in shapes):
        reason = "it is one shape, and each array has its own"
        raise OptionError.build(f"draw arrays with shapes={shapes!r}", reason, "shapes=[(2, 3), (2, 3)]")
    explicit = None if isinstance(shapes, str) else tuple(map(tuple, shapes))
    if explicit is None and shapes not in ("same", "broadcastable"):
        reason = "shapes are 'same', 'broadcastable', or a sequence of them"
        raise OptionError.build(f"draw arrays with shapes={shapes!r}", reason, "shapes='same'")
    count = n if n is not None else len(explicit) if explicit is not None else 2
    if explicit is not None and len(explicit) != count:
        raise OptionError.build(
            f"draw {count} arrays", f"{len(explicit)} shapes are given", f"n={len(explicit)}"
        )
    if count < 1:
        raise OptionError.build(f"draw {count} arrays", "a call has at least one", "n=2")
    module, known = get_backend(backend), xp_dtypes(backend, kinds)
    named = isinstance(dtypes, str) and dtypes not in ("same", "promotable")
    everywhere = module.devices()
    fit = [one for one in everywhere if named and module.unsupported_dtype(str(dtypes), one) is None]
    asked = st.sampled_from(fit or everywhere) if devices is None else devices
    device = asked if isinstance(asked, st.SearchStrategy) else st.just(asked)
    made: dict[object, st.SearchStrategy[Array]] = {}

    @st.composite
    def together(draw: st.DrawFn) -> tuple[Array, ...]:
        there = read_device(module, draw(device))

        def is_there(word: str) -> bool:
            return module.unsupported_dtype(word, there) is None

        drawn = explicit or _shapes(draw, shapes == "broadcastable", count)
        given = known if isinstance(dtypes, str) else dtypes
        word = str(dtypes) if named else draw(given.filter(is_there))
        words = [word] * count
        if dtypes == "promotable":
            near = known.filter(is_there).filter(lambda other: _are_promoted(word, other))
            words = [word, *(draw(near) for _ in range(count - 1))]
        result = []
        for shape, dtype in zip(drawn, words, strict=True):
            key = (there, shape, dtype)
            if key not in made:
                made[key] = arrays(backend, dtypes=dtype, shapes=shape, devices=there, **options)
            result.append(draw(made[key]))
        return tuple(result)

    return together()


def _are_promoted(one: str, other: str) -> bool:
    """Return True if the standard promotes two dtypes: of one kind, and uint64 with itself alone."""
    return category(one) == category(other) and (one == "uint64") == (other == "uint64")


def _shapes(draw: st.DrawFn, broadcast: bool, count: int) -> list[Shape]:  # noqa: FBT001 -- private
    """Draw one shape for all, or shapes that broadcast to it."""
    whole = draw(st.sampled_from(SHAPES))
    if not broadcast:
        return [whole] * count
    made = [whole]
    for _ in range(count - 1):
        first = draw(st.integers(0, len(whole)))
        made.append(tuple(1 if draw(st.booleans()) else side for side in whole[first:]))
    return made
