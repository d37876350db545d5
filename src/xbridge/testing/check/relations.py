"""Rules that a function of arrays keeps with any library, and so with NumPy too.

They find faults that all libraries share, which a comparison with NumPy cannot find: integers that wrap
around or are rounded, NaNs that comparisons drop, negative axes, and differences from NumPy's function of
the same name.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from xbridge.testing._compare_values import Tolerance, same_numbers
from xbridge.testing._outcome import Difference, Promise, compare, outcome, parts
from xbridge.testing.check.names import begins_with, has_word
from xbridge.testing.check.stages import Stage, with_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge._core.protocol import HostArray
    from xbridge.testing._call import Call
    from xbridge.testing._outcome import Outcome

_DROPS = re.compile(r"nan\w*|isnan|fmax|fmin|omit\w*|mask\w*|(is)?finite|where|like")
"""Words in the names of functions that leave NaNs out."""

_ORDERS = re.compile(r"(arg|lex)?sort|searchsorted|rank\w*|count|size|shape")
"""The first word in the names of functions whose results are positions or numbers of elements."""

_BITS = re.compile(
    r"bit\w*|popcount|\w*shift|invert|hash\w*|view|(un)?pack\w*|random\w*|dtypes?|(arg)?partition|type"
)
"""Words in the names of functions of the bits of integers, or of their dtypes."""

_NUMBERS = (np.ndarray, np.generic, int, float)
_WIDE = (("import numpy as np",), "np.testing.assert_allclose({}, {wide}, rtol=0.01)")
_KEEPS_NAN = (("import numpy as np",), "assert np.isnan({}).any()")
"""What a program asserts of a call."""

_SHIFTED = (("import numpy as np",), "np.testing.assert_array_equal({}, {lower} + 2**60)")

_LARGE = (100, 50, 90, 120, 7, 60)
_SMALL = (1, 2, 2, 1, 3, 1, 2)
_RANKS = (4, 1, 6, 3, 5, 2)
_FAR = 2**60
"""A number beside which float64 does not tell the ranks apart."""


def rules(call: Call, name: str) -> Iterator[Stage]:
    """Yield the calls of a base with NumPy's arrays that are judged by a rule."""
    floats = [one.values.dtype.kind == "f" for one in call.recipes()]
    if not all(one.values.dtype.kind in "fiu" for one in call.recipes()):
        return
    if not has_word(name, _BITS):
        for dtype in ("int8", "uint8"):
            large = with_values(call, partial(_large, dtype=dtype))
            yield Stage("dtype", f"{dtype} wrap-around", large._replace(by=_wraps, written=_WIDE))
        yield Stage("precision", ROUNDED, with_values(call, _far)._replace(by=_rounds, written=_SHIFTED))
    omits = has_word(name, _DROPS) or begins_with(name, _ORDERS) or "nan_policy" in call.kwargs
    for index in [n for n, is_float in enumerate(floats) if is_float and not omits]:
        missing = with_values(call, partial(_only_nan, which=index))
        yield Stage(
            "values",
            "NaN",
            missing._replace(by=partial(_find_dropped_nan, plain=call, which=index), written=_KEEPS_NAN),
        )


def _large(index: int, values: HostArray, *, dtype: str) -> HostArray:
    numbers = np.resize(np.roll(_LARGE, index), values.size).reshape(values.shape)
    return (numbers * 2 if dtype == "uint8" else numbers).astype(dtype)


ROUNDED = "large integers"
"""The label of calls that show that a function rounds integers to floating numbers."""


def _far(index: int, values: HostArray) -> HostArray:
    return np.resize(np.roll(_RANKS, index), values.size).reshape(values.shape) + _FAR


def _rounds(call: Call, run: Callable[[], Any]) -> Difference | None:
    """Find integers that a function selects, and that are not those among arguments less by 2**60.

    It selects if all integers of its result are among its arguments, and are so again after a linear change.
    """
    ranks = call.map(lambda one: one._replace(values=one.values - _FAR))
    lower, far = ranks.expected(), outcome(run)
    changed = with_values(ranks, lambda _, v: 10 * v + 7).expected()
    given = {n for one in ranks.recipes() for n in one.values.reshape(-1).tolist()}
    for (_, one, small), (_, linear, _) in zip(_pairs(far, lower), _pairs(changed, lower), strict=False):
        a, b, c = map(np.asarray, (one, small, linear))
        if b.dtype.kind not in "iu" or not a.shape == b.shape == c.shape or not given.issuperset(b.flat):
            continue
        if (c == 10 * b + 7).all() and not (a == b + _FAR).all():
            short = f"gives {one!r}, and for arguments that are 2**60 less {small!r}"
            return Difference("values", " ".join(short.split())[:300])
    return None


def _only_nan(index: int, values: HostArray, *, which: int) -> HostArray:
    return np.full(values.shape, np.nan) if index == which else values


def _least(index: int, values: HostArray) -> HostArray:
    """Return integers whose sums and products are small."""
    return np.resize(np.roll(_SMALL, index), values.shape)


def _wraps(call: Call, run: Callable[[], Any]) -> Difference | None:
    """Compare the results of large integers with those of int64, if the dtype of the results holds them.

    A function whose results differ for the smallest integers too, as those that scale images do, reads the
    range of the dtype.
    """
    least = with_values(call, _least)
    small = _pairs(_of(least, "int8"), _of(least, "int64"))
    if any(_is_wrong(np.asarray(a), np.asarray(b), rtol=_SMALLEST) for _, a, b in small):
        return None
    narrow = outcome(run)
    wide = _of(call, "int64")
    if narrow.error is not None or wide.error is not None:
        return None
    for path, one, other in _pairs(narrow, wide):
        a, b = np.asarray(one), np.asarray(other)
        if a.shape != b.shape or not _is_wrong(a, b):
            continue
        floating = _of(call, a.dtype.name)
        alike = [each for at, _, each in _pairs(narrow, floating) if at == path]
        if a.dtype.kind != "f" or not alike or _is_wrong(a, np.asarray(alike[0])):
            short = f"gives {one!r}, and with int64 {other!r}".replace("\n", " ")
            return Difference("values", short[:300])
    return None


def _pairs(one: Outcome, other: Outcome) -> Iterator[tuple[str, Any, Any]]:
    """Yield the real numbers at the same places of two results."""
    for (path, a), (_, b) in zip(parts(one.result), parts(other.result), strict=False):
        if all(isinstance(x, _NUMBERS) and np.asarray(x).dtype.kind in "iuf" for x in (a, b)):
            yield path, a, b


_SMALLEST = 1e-6
"""The least difference that shows that a result in float64 depends on the range of an integer dtype."""


def _is_wrong(a: HostArray, b: HostArray, rtol: float = 1e-2) -> bool:
    """Return True if numbers differ from finite ones that their dtype holds.

    In shorter dtypes than float64 they may differ by 1 %, because functions of int8 compute in float16.
    """
    with np.errstate(all="ignore"):
        held = same_numbers(b.astype(a.dtype), b) if a.dtype.kind in "iu" else np.isfinite(b)
    if not held.all():
        return False
    is_float = a.dtype.kind == "f"
    share = rtol if a.dtype == np.float64 else 1e-2
    atol = 1e-6 * float(abs(b).max(initial=0)) if is_float else None
    near = Tolerance.of(
        a.dtype.name, b.dtype.name, rtol=share if is_float else None, atol=atol, equal_nan=True
    )
    return not near.agree(a, b).all()


def _of(call: Call, dtype: str) -> Outcome:
    """Run a call with arrays of another dtype."""
    return outcome(call.bind(one.values.astype(dtype) for one in call.recipes()))


def _find_dropped_nan(_call: Call, run: Callable[[], Any], *, plain: Call, which: int) -> Difference | None:
    """Find floating results without a NaN of an argument that has nothing else, if they depend on it."""
    found, usual = outcome(run), plain.expected()
    other = with_values(plain, partial(_shifted, which=which)).expected()
    if found.error is not None or usual.error is not None or other.error is not None:
        return None
    for (_, one, before), (_, _, moved) in zip(_pairs(found, usual), _pairs(found, other), strict=False):
        a, b, c = np.asarray(one), np.asarray(before), np.asarray(moved)
        if a.dtype.kind != "f" or not a.size or not a.shape == b.shape == c.shape:
            continue
        if not (np.isclose(b, c, equal_nan=True).any() or np.isnan(a).any() or np.isnan(b).any()):
            short = " ".join(f"gives {one!r} for an argument of NaNs".split())
            return Difference("drops NaN", short[:300])
    return None


def _shifted(index: int, values: HostArray, *, which: int) -> HostArray:
    return values * 1.5 + 0.25 if index == which else values


# -- the same axis, counted from the end ---------------------------------------------------------


def negative_axes(call: Call) -> Iterator[Stage]:
    """Yield the calls with each negative axis, beside those with the same axis counted from the start."""
    name = next((word for word in ("axis", "dim") if type(call.kwargs.get(word)) is int), "")
    call = with_values(call, lambda _, v: v.reshape(1, 2, 3) if v.shape == (6,) else v)
    axes = {one.values.ndim for one in call.recipes()}
    if not name or len(axes) != 1:
        return
    (count,) = axes
    beyond = call._replace(kwargs={**call.kwargs, name: count}).expected()
    if beyond.error is None and any(np.ndim(part) > count for _, part in parts(beyond.result)):
        return  # an axis of the result
    options = {**call.options, "beside": "with the axis from the start"}
    beside = call._replace(reference=partial(_from_start, call.f, name), options=options)
    for axis in range(-count, 0):
        yield Stage("axis", "a negative axis", beside._replace(kwargs={**call.kwargs, name: axis}))


def _from_start(f: Callable[..., Any], name: str, /, *args: Any, **kwargs: Any) -> Any:
    count = max(x.ndim for x in (*args, *kwargs.values()) if isinstance(x, np.ndarray))
    return f(*args, **{**kwargs, name: kwargs[name] + count})


# -- methods of NumPy's ufuncs --------------------------------------------------------------------


def ufunc_methods(call: Call) -> Iterator[Stage]:
    """Yield the calls of a ufunc that its methods repeat, each judged by the result of a method."""
    if isinstance(call.f, np.ufunc) and call.f.nout == 1 and not call.kwargs:
        short = with_values(call, lambda _, v: v[:2] if v.ndim else v)
        for name, (inputs, method, calls, needed) in _METHODS.items():
            if call.f.nin in inputs:
                written = (
                    ("import numpy as np", *needed),
                    f"np.testing.assert_allclose({method}, {calls}, rtol=1e-05)",
                )
                by = partial(_compare_method, method=method, calls=calls, needed=needed)
                yield Stage("ufunc", name, short._replace(by=by, written=written))


_METHODS: dict[str, tuple[tuple[int, ...], str, str, tuple[str, ...]]] = {
    "reduce": (
        (2,),
        "{f}.reduce([{args}] * 2)",
        "reduce({f}, [{args}] * 2)",
        ("from functools import reduce",),
    ),
    "accumulate": (
        (2,),
        "{f}.accumulate([{args}] * 2)",
        "[*accumulate([{args}] * 2, {f})]",
        ("from itertools import accumulate",),
    ),
    "outer": ((2,), "{f}.outer({args})", "[{f}(x, ({args})[1]) for x in ({args})[0]]", ()),
    "at": (
        (1, 2),
        "at({f}, {args})",
        "twice({f}, {args})",
        (
            "def at(f, x, *y): x = x.copy(); f.at(x, [0, 0], *(z[:2] for z in y)); return x[0]",
            "def twice(f, x, *y): return f(f(x[0], *(z[0] for z in y)), *(z[1] for z in y))",
        ),
    ),
}
"""How many arguments a ufunc has for a method; expressions with it, and with calls; and what these need."""


def _compare_method(
    call: Call, _run: Callable[[], Any], *, method: str, calls: str, needed: tuple[str, ...]
) -> Difference | None:
    names = [f"x{n}" for n in range(len(call.recipes()))]
    words = {"f": "f", "args": ", ".join(names)}
    arrays = (one.make() for one in call.recipes())
    place: dict[str, Any] = {"f": call.f, **dict(zip(names, arrays, strict=True))}
    exec("\n".join(needed), place)  # noqa: S102 -- our own statements
    one, other = (outcome(partial(eval, text.format(**words), place)) for text in (method, calls))
    if one.error is not None or other.error is not None:
        return None
    a, b = np.asarray(one.result), np.asarray(other.result)
    if a.shape == b.shape and np.allclose(a, b, rtol=1e-5, atol=0, equal_nan=True):
        return None
    return Difference("values", f"gives {a.tolist()!r}, and by calls alone {b.tolist()!r}"[:300])


# -- NumPy's function of the same name -----------------------------------------------------------


def namesake(call: Call, name: str) -> Callable[..., Any] | None:
    """Return NumPy's function of that name, if it does the same with several plain arrays."""
    found = getattr(np, name, None)
    if not callable(found) or isinstance(found, type) or found is call.f:
        return None
    for number in (1.0, 3.0, -2.5):
        plain = with_values(call, lambda _, v, number=number: v * number if v.dtype.kind == "f" else v)  # type: ignore[misc]
        if _differs(plain.expected(), plain._replace(reference=found).expected()):
            return None
    return cast("Callable[..., Any]", found)


def _differs(one: Outcome, other: Outcome) -> bool:
    if one.error is not None or other.error is not None:
        return True
    return compare(one, other, Promise("numpy", "cpu", dtype="any")) is not None  # type: ignore[arg-type] # a Device
