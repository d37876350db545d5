"""Check what a function of arrays promises by itself, without a reference to compare it with.

A promise is checked by further calls with the same values: in another layout, in another order, in threads,
in float64. Each is a `Call` with a judge of its own, so that a failure is diagnosed and simplified as a
difference from NumPy's is.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from linecache import getline
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from xbridge.errors import OptionError, XBridgeError
from xbridge.extend import CPU, DTYPES, HOST, category, get_backend, is_inexact
from xbridge.testing import _derived
from xbridge.testing._addresses import overlap
from xbridge.testing._call import Call, describe, program
from xbridge.testing._diff import differences, look, resolve
from xbridge.testing._interleavings import DeadlockError, Interleavings, run_alone
from xbridge.testing._matches import MismatchError
from xbridge.testing._outcome import MOST_LISTED, Difference, compare, first_line, kept, outcome, parts
from xbridge.testing._reachable import ReachableState
from xbridge.testing._settings import Settings, changed_by, module_of
from xbridge.testing._source import ON_REQUEST, literal, properties_of, read_expression, recipe_of
from xbridge.testing._without import excluded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge.protocol import Array, Backend, HostArray
    from xbridge.testing._call import Program
    from xbridge.testing._interleavings import Switch
    from xbridge.testing._outcome import Outcome
    from xbridge.testing._source import Recipe

T = TypeVar("T")

_NARROW = {"float64": "float32", "complex128": "complex64"}
_LEAST_EXPONENTS = {"float16": -13, "float64": -1021, "complex128": -1021}
"""The exponents of the smallest normal numbers, as `frexp` counts. Other dtypes have that of float32."""


class Contract(NamedTuple):
    """The promises of a function, as the keywords of `assert_contract` name them."""

    dtype: str | None = None
    aliases: bool | None = None
    ulp: float | None = None
    lazy: bool = False
    differentiable: bool = False
    reference: Callable[..., Any] | None = None
    layouts: bool = True
    empty: bool = True
    repeatable: bool = True
    threads: bool = True
    raises: type[Exception] | tuple[type[Exception], ...] = ()


def assert_contract(  # noqa: PLR0913 -- independent promises
    f: Callable[..., Any],
    /,
    *args: Any,
    dtype: str | None = None,
    aliases: bool | None = None,
    ulp: float | None = None,
    lazy: bool = False,
    differentiable: bool = False,
    reference: Callable[..., Any] | None = None,
    layouts: bool = True,
    empty: bool = True,
    repeatable: bool = True,
    threads: bool = True,
    raises: type[Exception] | tuple[type[Exception], ...] = (),
    **kwargs: Any,
) -> None:
    """Assert that a function of arrays keeps its promises, most of them without a reference.

    The arguments must stay unchanged in any case. Each further promise is checked by calls with arrays of the
    same values. Those that nearly every function makes are checked unless they are switched off.

    Parameters
    ----------
    f : callable
        The function.
    *args, **kwargs
        Its arguments, with arrays of one library.
    dtype : str, optional
        The dtype of every array in the result: ``"kept"`` for that of the arguments, to which NumPy promotes
        several; ``"kind"`` for one of its kind, such as any floating dtype; or a name, such as ``"bool"``.
    aliases : bool, optional
        False if no result shares memory with an argument, in any layout, float32 or float64; True if each
        does. Arrays that nobody can write, such as those of JAX and Dask, share memory without harm and are
        left out.
    ulp : float, optional
        The largest error of floating results, in units in the last place. The function is called with the
        arguments in float32, or in the narrower dtype that they have, and in float64. Results in float64 must
        have its precision: a function that rounds to float32 inside is inaccurate for any number.
    lazy : bool
        Whether Dask's arrays are not computed and JAX's are traced, see `assert_lazy`. Other libraries have
        no lazy arrays.
    differentiable : bool
        Whether gradients of torch and JAX are those of the values, see `assert_gradients`. The function has
        to be differentiable at the arguments. Arguments that are not finite are left out.
    reference : callable, optional
        A function that gives the same values with NumPy's arrays. Dtypes are not compared.
    layouts : bool
        Whether results are the same in every memory layout: in other orders and strides, repeated by
        broadcasting, unaligned, read-only, in the other byte order, in other chunks, with pending
        conjugation. Layouts that the mark or the option ``without`` names are left out.
    empty : bool
        Whether arrays without elements are taken, if the same call with elements is. With False, nothing is
        promised for them, and a test that draws one passes.
    repeatable : bool
        Whether a result depends on the arguments alone, not on earlier calls or on what is written into their
        arrays afterwards; later calls leave it as it is; and settings of the process, such as NumPy's error
        handling or a seed, stay as they are. A buffer that every call fills and returns breaks this, and so
        does state that is documented, such as a running mean: with False, all other promises are held from
        the same state.
    threads : bool
        Whether a call gives the same while another thread calls the function, if it is `repeatable`. The call
        is stopped before each of its operations in turn, while a second one runs, so a race is found every
        time.
    raises : exception or tuple of exceptions
        Errors by which the function may refuse arguments. The check then ends.

    Raises
    ------
    AssertionError
        A promise is broken. The message names it and the property of the arrays that matters, and has a
        program without xbridge.
    OptionError
        `dtype` is another word, or `raises` is no exception.

    Notes
    -----
    Containers and buffers that the function reaches through its variables are set back to what they were
    before each call, by ``load_state_dict`` for objects that have it, and those of `functools.cache` are
    emptied. A function that reaches none is not called in threads. State that is hidden in extension modules
    is not seen.

    Examples
    --------
    >>> import numpy as np
    >>> def scale(x):
    ...     return x / np.abs(x).max(initial=1)
    >>> assert_contract(scale, np.array([1.0, 4.0], "float32"), dtype="kept", aliases=False, ulp=1)
    >>> def first_half(x):
    ...     return x[: x.size // 2]
    >>> assert_contract(first_half, np.ones(2), aliases=False)
    Traceback (most recent call last):
    xbridge.testing._matches.MismatchError: first_half aliases an argument with numpy: fails for plain arrays
    the result has memory in common with array 0
    <BLANKLINE>
    import numpy as np
    a = np.array([1.0, 1.0])
    result = f(a)  # the result has memory in common with array 0
    assert not np.shares_memory(result, a)
    # f is the function of the test
    """
    __tracebackhide__ = True
    promised = Contract(
        dtype, aliases, ulp, lazy, differentiable, reference, layouts, empty, repeatable, threads, raises
    )
    hold(f, args, kwargs, promised)


def hold(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    promised: Contract,
    is_over: Callable[[], bool] = bool,
) -> bool:
    """Raise an AssertionError if a function breaks a contract. Return False if the time was over before."""
    __tracebackhide__ = True
    check_promises(promised)
    given: list[Array] = []
    state, settings = ReachableState(f), Settings()
    call = Call.of(f, args, kwargs, None, {}, given)._replace(
        by=partial(_judge_result, promised=promised), state=state
    )
    if not promised.empty and any(one.values.size == 0 for one in call.recipes()):
        return True
    try:
        first = outcome(partial(f, *args, **kwargs))
        if isinstance(first.error, promised.raises):
            return True
        if found := _break(call, given, first, promised):
            raise MismatchError(call, found)
        for trial in _trials(call, promised, state, settings, is_over):
            if is_over():
                return False
            state.restore()
            if found := trial.judge():
                raise MismatchError(trial, found)
    finally:
        state.restore()
        settings.restore()
    return True


def check_promises(promised: Contract) -> None:
    """Raise if the word for a dtype is not a promise, or the error by which arguments are refused is none."""
    if promised.dtype not in (None, "kept", "kind", *DTYPES):
        reason = "it is 'kept', 'kind' or the name of a dtype"
        raise OptionError.build(f"hold a function to dtype={promised.dtype!r}", reason, "dtype='kept'")
    raises: Any = promised.raises
    for one in raises if isinstance(raises, tuple) else (raises,):
        if not (isinstance(one, type) and issubclass(one, Exception)):
            action, reason = (
                f"hold a function to raises={raises!r}",
                "it is an exception class, or a tuple of them",
            )
            raise OptionError.build(action, reason, "raises=ValueError")


def _trials(
    call: Call, promised: Contract, state: ReachableState, settings: Settings, is_over: Callable[[], bool]
) -> Iterator[Call]:
    """Yield the additional calls that a contract requires, each with the function that judges it."""
    recipes, library = call.recipes(), call.promise.backend
    if promised.repeatable:
        yield from _repetitions(call, state, settings)
    if promised.aliases is False:
        by = partial(_judge_result, promised=Contract(aliases=False, raises=Exception))
        yield from (one._replace(by=by) for one in _retyped(call))
    floating = [one.values for one in recipes if is_inexact(one.values.dtype.name)]
    if promised.reference is not None:
        yield call._replace(reference=promised.reference, options={"dtype": "any"}, by=None)
    if promised.ulp is not None and floating:
        yield call.map(narrow)._replace(by=partial(_judge_accuracy, ulp=promised.ulp))
    if promised.lazy and library in _derived.LAZY:
        yield _derived.as_lazy(call)
    is_smooth = floating and all(np.isfinite(values).all() for values in floating)
    if promised.differentiable and library in _derived.DIFFERENTIABLE and is_smooth:
        yield _derived.as_differentiable(call)
    if promised.layouts:
        by = partial(_judge_layout, promised=promised._replace(aliases=promised.aliases and None))
        yield from _relaid(call._replace(options={"beside": "for plain arrays"}, by=by))
    if promised.empty:
        yield from _emptied(call, promised)
    if promised.threads and promised.repeatable:
        yield from _races(call, state, is_over)


def _repetitions(call: Call, state: ReachableState, settings: Settings) -> Iterator[Call]:
    """Yield the calls that find what a call leaves behind: settings, caches and buffers."""
    others, retyped = _others(call), _retyped(call)
    yield call._replace(by=partial(_judge_settings, settings=settings))
    pairs = [(call, one) for one in (*others, *retyped)] + [(one, call) for one in retyped]
    for one, other in pairs:
        by = partial(_judge_repeated, other=other, state=state)
        yield one._replace(by=by, options={"beside": "in a first call"})
    if not get_backend(call.promise.backend).assumes_immutable:
        plain, other = (one.map(lambda x: x._replace(properties=())) for one in others[:2])
        plain = plain._replace(options={"beside": "in a first call"})
        yield plain._replace(by=partial(_judge_written, other=other, state=state))
        yield plain._replace(by=partial(_judge_overwritten, state=state))


def _races(call: Call, state: ReachableState, is_over: Callable[[], bool]) -> Iterator[Call]:
    """Yield the calls that find what a call in another thread changes, until the time is over."""
    alone = call._replace(options={"beside": "alone"})
    for other in () if state.is_empty else _others(call):
        by = partial(_judge_threads, other=other, state=state, is_over=is_over)
        yield alone._replace(by=by)


def _others(call: Call) -> list[Call]:
    """Return calls of the same dtypes: the same one, one with other values, and longer ones."""
    return [call, call.map(_other_values), *(_longer(call, axis) for axis in (0, -1))]


def _retyped(call: Call) -> list[Call]:
    """Return the call with its numbers in narrower and wider dtypes."""
    return [one for one in (call.map(narrow), call.map(_widen_there)) if _dtypes(one) != _dtypes(call)]


# -- the result --------------------------------------------------------------------------------------


def _judge_result(call: Call, run: partial[Any], *, promised: Contract) -> Difference | None:
    """Judge a call by its result alone."""
    return _break(call, _given(run), outcome(run), promised)


def _given(run: partial[Any]) -> list[Array]:
    """Return the arrays among the arguments of a call."""
    arrays: list[Array] = []
    describe((run.args, run.keywords), arrays)
    return arrays


def _break(call: Call, arrays: list[Array], made: Outcome, promised: Contract) -> Difference | None:
    """Return the first promise that the result of a call breaks."""
    if made.error is not None:
        if isinstance(made.error, promised.raises):
            return None
        name = type(made.error).__name__
        return Difference(f"raises {name}", f"{name}: {first_line(made.error)}")
    if changed := call.changed(arrays):
        return Difference("changes its input", changed)
    if found := _break_flags(call, arrays):
        return found
    for path, part in parts(made.result):
        owner = _resolve(part)
        if owner is None:
            continue
        backend, x = owner
        found = None
        if promised.dtype is not None:
            found = _break_dtype(call, backend.array_info(x).dtype, promised.dtype)
        if promised.aliases is not None and not backend.assumes_immutable:
            found = found or _break_aliases(call, arrays, x, aliases=promised.aliases)
        if found:
            return found._replace(path=path, message=found.message.replace("result", f"result{path}", 1))
    return None


_FLAGS = {"read-only": "assert {}.flags.writeable", "requires_grad": "assert not {}.requires_grad"}
"""Flags that a call may set on an argument, and the statement that it does not."""


def _break_flags(call: Call, arrays: list[Array]) -> Difference | None:
    """Find a flag of an argument that its recipe does not have."""
    made = program(call)
    for one, x, name in zip(call.recipes(), arrays, made.arrays, strict=True):
        now = recipe_of(x, get_backend(one.backend)).properties
        for flag in {*now}.intersection(_FLAGS).difference(one.properties):
            said = f"array {name} became {flag}"
            lines = (f"{made.call}  # {said}", _FLAGS[flag].format(name))
            return Difference("changes its input", said, program=lines)
    return None


def _resolve(part: object) -> tuple[Backend, Array] | None:
    """Return the backend of a part of a result and the array; None for anything else."""
    try:
        return resolve(part, "compare")
    except XBridgeError:
        return None


def _break_dtype(call: Call, dtype: str, promised: str) -> Difference | None:
    """Compare the dtype of a result with the promised one, or with that of the arguments."""
    wanted = promised
    if promised in ("kept", "kind"):
        given = [one.values.dtype for one in call.recipes()]
        wanted = np.result_type(*given).name if given else dtype
    if dtype == wanted or (promised == "kind" and category(dtype) == category(wanted)):
        return None
    whose = (
        f"and the contract says {wanted}" if promised not in ("kept", "kind") else f"of {wanted} arguments"
    )
    text = "str({part}.dtype).rpartition('.')[2]"
    check = f"assert {category(wanted)!r} in {text}" if promised == "kind" else f"assert {text} == {wanted!r}"
    return Difference("dtype", f"the result is {dtype}, {whose}", check=check)


def _break_aliases(call: Call, arrays: list[Array], x: Array, *, aliases: bool) -> Difference | None:
    """Compare the memory of a result with that of each argument."""
    shared = [number for number, array in enumerate(arrays) if overlap(x, array)]
    if bool(shared) == aliases or 0 in x.shape:
        return None
    one, name = call.recipes()[shared[0] if shared else 0], program(call).arrays[shared[0] if shared else 0]
    there, here = (read_expression(one.backend, word) for word in ("{part}", name))
    check = f"assert {'' if aliases else 'not '}np.shares_memory({there}, {here})"
    if aliases:
        return Difference("copies", "the result has no memory in common with an argument", check=check)
    said = f"the result has memory in common with array {shared[0]}"
    return Difference("aliases an argument", said, check=check)


# -- precision ---------------------------------------------------------------------------------------


def narrow(one: Recipe) -> Recipe:
    """Round an array to float32, or leave it in a dtype that is no wider."""
    dtype = _NARROW.get(one.values.dtype.name)
    with np.errstate(over="ignore"):
        return one if dtype is None else one._replace(values=one.values.astype(dtype))


def _widen(one: Recipe) -> Recipe:
    """Return the same numbers in float64, in NumPy if the library does not have it."""
    name = one.values.dtype.name
    if not is_inexact(name):
        return one
    dtype = "complex128" if category(name) == "complex" else "float64"
    wide = one._replace(values=one.values.astype(dtype), properties=())
    has = get_backend(one.backend).unsupported_dtype(dtype, one.device) is None
    return wide if has else wide._replace(backend=HOST, device=CPU)


def _judge_accuracy(call: Call, run: Callable[[], Any], *, ulp: float) -> Difference | None:
    """Compare floating results with those in float64."""
    narrow, wide = outcome(run), call.map(_widen).run()
    if narrow.error is not None or wide.error is not None:
        return None
    inputs = [one.values.dtype.name for one in call.recipes() if is_inexact(one.values.dtype.name)]
    for (path, one), (_, other) in zip(parts(narrow.result), parts(wide.result), strict=False):
        if _resolve(one) is None or _resolve(other) is None:
            continue
        a, b = look(one), look(other)
        if not is_inexact(a.dtype) or a.values.shape != b.values.shape:
            continue
        dtype = min((a.dtype, *inputs), key=lambda name: DTYPES[name].digits)
        errors = _count_ulps(a.values, b.values, dtype)
        if not (errors <= ulp).all():
            names = (a.dtype, "in float64")
            lines = differences(a, b, [], lambda _a, _b, errors=errors: errors <= ulp, names=names)  # type: ignore[misc]
            where = f"result{path}" if path else "the result"
            text = f"{where} is wrong by {np.nanmax(errors):.3g} units in the last place of {dtype}"
            shown = read_expression(a.backend, "{part}")
            rtol = ulp * 2.0 ** -DTYPES[dtype].digits
            check = f"np.testing.assert_allclose({shown}, {literal(b.values)}, rtol={rtol:.3g}, atol=0)"
            is_long = b.values.size > MOST_LISTED
            return Difference("is inaccurate", "\n".join([text, *lines]), path, "" if is_long else check)
    return _find_rounding(call.map(_widen), wide, ulp)


def _find_rounding(call: Call, usual: Outcome, ulp: float) -> Difference | None:
    """Find results in float64 that were rounded to a narrower dtype: they follow no small change.

    Large steps of the arguments in one direction have proportional effects, so the function is smooth there.
    A step below the precision of float32 then has a proportional one too, unless it was rounded away.
    """
    large, small = ([_moved(call, step) for step in steps] for steps in (_LARGE_STEPS, _SMALL_STEPS))
    if any(made.error is not None for made in (*large, *small)):
        return None
    for (path, start), *moved in zip(*map(_wide_parts, (usual, *large, *small)), strict=False):
        if start is None or any(x is None or x.shape != start.shape for _, x in moved):
            continue
        with np.errstate(all="ignore"):
            slopes = [
                (x - start) / step for (_, x), step in zip(moved, (*_LARGE_STEPS, *_SMALL_STEPS), strict=True)
            ]
            size = abs(slopes[0])
            least = 16 * max(ulp, 1) * 2.0**-53 * abs(start) / _SMALL_STEPS[1]  # what float64 itself rounds
            is_whole = np.rint(start) == start  # as what `round` returns, which has steps of its own
            smooth = (size > least) & np.isfinite(size) & ~is_whole
            for slope in slopes[: len(large)]:
                smooth &= abs(slope - slopes[0]) < size / 16
            lost = smooth
            for slope in slopes[len(large) :]:
                lost = lost & (abs(slope - slopes[0]) > size / 2)
        if lost.any():
            where = f"result{path}" if path else "the result"
            text = f"{where} is rounded to fewer digits than float64 has: changes of 1 in 2**32 are lost"
            return Difference("is inaccurate", text, path, program=_steps_program(call, path, text))
    return None


def _steps_program(call: Call, path: str, said: str) -> tuple[str, ...]:
    """Return a program that compares the effects of a large and of a small step."""
    made, recipes = program(call, taken=len(call.recipes())), call.recipes()
    moved = [
        f"{name} * (1 + step * (1 + {name} / {2 * _scale(one.values)!r}))"
        if is_inexact(one.values.dtype.name)
        else name
        for name, one in zip(made.arrays, recipes, strict=True)
    ]
    small, large = (read_expression(call.promise.backend, name) for name in ("small", "large"))
    return (
        *made.lines,
        "import numpy as np",
        f"def result({', '.join(made.arrays)}):",
        f"    return {made.call}{path}",
        "def effect(step):",
        f"    return (result({', '.join(moved)}) - result({', '.join(made.arrays)})) / step",
        f"large, small = effect({_LARGE_STEPS[1]}), effect({_SMALL_STEPS[0]})",
        f"np.testing.assert_allclose({small}, {large}, rtol=0.5)  # {said}",
    )


_LARGE_STEPS = (2.0**-9, 2.0**-11, 2.0**-13, 2.0**-15)
_SMALL_STEPS = (2.0**-32, 2.0**-33)
"""Steps relative to the arguments: float32 has 24 bits."""


def _moved(call: Call, step: float) -> Outcome:
    """Run a call with all floating numbers moved by a step, large ones relatively more than small ones."""

    def move(one: Recipe) -> Recipe:
        if not is_inexact(one.values.dtype.name):
            return one
        return one._replace(values=one.values * (1 + step * (1 + one.values / _scale(one.values) / 2)))

    with np.errstate(all="ignore"):
        return call.map(move).run()


def _scale(values: HostArray) -> float:
    """Return the largest finite size of numbers."""
    sizes = abs(values[np.isfinite(values)])
    return float(sizes.max(initial=0)) or 1.0


def _wide_parts(made: Outcome) -> Iterator[tuple[str, HostArray | None]]:
    """Yield the parts of a result, with the values of those that are in float64."""
    for path, part in parts(made.result):
        read = look(part) if _resolve(part) is not None else None
        yield path, read.values if read is not None and read.dtype in _NARROW else None


def _count_ulps(a: HostArray, b: HostArray, dtype: str) -> HostArray:
    """Return the distances of numbers from exact ones, in units in the last place of a dtype."""
    digits, least = DTYPES[dtype].digits, _LEAST_EXPONENTS.get(dtype, -125)
    wide = a.astype(b.dtype)
    with np.errstate(all="ignore"):
        rounded = b.astype(dtype).astype(b.dtype)  # a number beyond the range is right if it is infinite
        unit = np.ldexp(1.0, np.maximum(np.frexp(np.abs(b))[1], least) - digits)
        same = (wide == b) | (wide == rounded) | (np.isnan(wide) & np.isnan(b))
        errors = np.where(same, 0.0, np.abs(wide - b) / unit)
    return np.where(np.isnan(errors), np.inf, errors)


def _widen_there(one: Recipe) -> Recipe:
    """Return the same numbers in float64, if the library has it."""
    wide = _widen(one)
    return wide._replace(properties=one.properties) if wide.backend == one.backend else one


def _dtypes(call: Call) -> list[np.dtype[Any]]:
    return [one.values.dtype for one in call.recipes()]


# -- layouts and sizes -------------------------------------------------------------------------------


def _relaid(call: Call) -> Iterator[Call]:
    """Yield the call in every layout: that of all arrays that have it, and of each alone."""
    recipes = [one._replace(properties=()) for one in call.recipes()]
    left_out = {*ON_REQUEST, *excluded()}
    for name in dict.fromkeys(word for one in recipes for word in properties_of(one.backend)):
        relaid = (
            {} if name in left_out else {n: x for n, one in enumerate(recipes) if (x := _laid(one, name))}
        )
        ways = [relaid] * bool(relaid) + [{n: x} for n, x in relaid.items() if len(relaid) > 1]
        yield from (call.fill([way.get(n, one) for n, one in enumerate(recipes)]) for way in ways)


def _laid(one: Recipe, name: str) -> Recipe | None:
    """Return an array with a property, with equal rows if it needs them; None if it is impossible."""
    values = one.values
    folded = one._replace(values=np.repeat(values[:1], len(values), 0)) if values.ndim else one
    for each in (one, folded):
        if each.takes(name):
            return each._replace(properties=(name,))
    return None


def _judge_layout(call: Call, run: partial[Any], *, promised: Contract) -> Difference | None:
    """Judge the result of a call, and compare it with one on the same values in the simplest layout."""
    plain = call.map(lambda one: one._replace(properties=()))
    arrays, made = _given(run), outcome(run)
    if made.error is None and (broken := _break(call, arrays, made, promised)):
        return broken
    made, usual = kept(made), plain.run()
    found = compare(made, usual, call.promise)
    is_unstable = found is not None and found.kind == "values" and _depends_on_last_bits(plain, usual)
    return None if is_unstable else found


def _depends_on_last_bits(call: Call, usual: Outcome) -> bool:
    """Return True if other last bits of the arguments change the result as much as a fault does."""
    return any(compare(call.nudged(sign).run(), usual, call.promise) is not None for sign in (1, -1))


def _cleared(call: Call, *, alone: bool) -> Call:
    """Return a call without rows of the first array, and of others of the same length unless alone."""
    recipes = call.recipes()
    first = next(n for n, one in enumerate(recipes) if one.values.ndim)
    length = len(recipes[first].values)
    cleared = [
        one.with_values(one.values[:0])
        if n == first or (not alone and one.values.shape[:1] == (length,))
        else one
        for n, one in enumerate(recipes)
    ]
    return call.fill(cleared)


def _longer(call: Call, axis: int) -> Call:
    """Return a call with twice the length along the first or the last axis of the first array."""
    sides = [one.values.shape[axis] for one in call.recipes() if one.values.ndim > -axis]

    def double(one: Recipe) -> Recipe:
        if not sides or one.values.ndim <= -axis or one.values.shape[axis] != sides[0]:
            return one
        return one.with_values(np.concatenate([one.values, one.values], axis))

    return call.map(double)


def _emptied(call: Call, promised: Contract) -> Iterator[Call]:
    """Yield the call with arrays without elements."""
    if any(one.values.ndim for one in call.recipes()) and all(one.values.size for one in call.recipes()):
        both, one = (_cleared(call, alone=alone) for alone in (False, True))
        yield both._replace(by=partial(_judge_empty, promised=promised, others=(one, _without_rows(call))))


def _without_rows(call: Call) -> Call:
    """Return a call with empty arrays: every axis that is as long as the first one gets length 0."""
    length = next(len(one.values) for one in call.recipes() if one.values.ndim)
    return call.map(
        lambda one: one.with_values(
            one.values[tuple(slice(0 if n == length else None) for n in one.values.shape)]
        )
    )


def _judge_empty(
    call: Call, run: partial[Any], *, promised: Contract, others: tuple[Call, ...]
) -> Difference | None:
    """Judge the result of a call with empty arrays; axes of one length may belong together, or not."""
    found = _judge_result(call, run, promised=promised)
    if found is None or not found.kind.startswith("raises "):
        return found
    fail = all(other.judge() for other in others)
    return found._replace(kind=f"{found.kind} for empty arrays") if fail else None


# -- other calls -------------------------------------------------------------------------------------


def _other_values(one: Recipe) -> Recipe:
    """Return an array of the same dtype and shape with other values, close to the given ones."""
    values = one.values.reshape(-1)[::-1].reshape(one.values.shape)
    kind = category(one.values.dtype.name)
    with np.errstate(all="ignore"):
        other = ~values if kind == "bool" else values // 2 + 1 if kind == "int" else values / 2 + 0.25
    return one.with_values(other.astype(one.values.dtype))


def _judge_repeated(
    call: Call, _run: Callable[[], Any], *, other: Call, state: ReachableState
) -> Difference | None:
    """Compare a call after another one with the same call before it, and a result with itself before it."""
    one, another = call._replace(state=None), other._replace(state=None)
    state.restore()
    result = one.run()
    first = kept(result)
    another.run()
    changed = found = compare(result, first, call.promise)
    calls = 0
    while found is None and calls < (1 if state.is_empty else _MOST_CALLS):
        calls += 1
        state.restore()
        for _ in range(calls):
            another.run()
        found = compare(one.run(), first, call.promise)
    state.restore()
    if found is None:
        return None
    made, before = program(call), program(other, taken=len(call.recipes()))
    if changed:
        kind, lines = "changes an earlier result", [f"first = {made.call}", before.call]
        lines += _checked("first", found, made)
    else:
        kind, lines = _DEPENDS, [*[before.call] * calls, *_checked(made.call, found, made)]
    return found._replace(kind=kind, program=(*_arrays_of(before), *lines))


_DEPENDS = "depends on earlier calls"

_MOST_CALLS = 3
"""The most earlier calls, after which what a function counts or collects may make a difference."""


def _judge_written(
    call: Call, _run: Callable[[], Any], *, other: Call, state: ReachableState
) -> Difference | None:
    """Compare a call with one after another on the same arrays, which had other values then."""
    one, another = call._replace(state=None), other._replace(state=None)
    state.restore()
    usual = kept(one.run())
    state.restore()
    arrays = [each.make() for each in other.recipes()]
    outcome(another.bind(arrays))
    values = [each.make() for each in call.recipes()]
    if outcome(partial(_assign, arrays, values)).error is not None:
        return None
    found = compare(outcome(one.bind(arrays)), usual, call.promise)
    state.restore()
    if found is None:
        return None
    made, before = program(call), program(other, taken=len(call.recipes()))
    names = zip(made.arrays, before.arrays, strict=True)
    lines = [before.call, *(f"{there}[...] = {here}" for here, there in names)]
    lines += _checked(before.call, found, made)
    return found._replace(kind=_DEPENDS, program=(*_arrays_of(before), *lines))


def _assign(arrays: list[Array], values: list[Array]) -> None:
    for array, each in zip(arrays, values, strict=True):
        array[...] = each


def _judge_settings(call: Call, run: Callable[[], Any], *, settings: Settings) -> Difference | None:
    """Find a setting of the process that a call changes for all other code."""
    settings.restore()
    found = outcome(partial(changed_by, run)).result
    settings.restore()
    if found is None:
        return None
    text, before, after = found
    made, shown = program(call), [_cut(value) for value in (before, after)]
    said = f"{text} was {shown[0]} and became {shown[1]}"
    lines = (
        f"import {module_of(text)}",
        f"before = str({text})",
        f"{made.call}  # {said}",
        f"assert str({text}) == before",
    )
    return Difference("changes a setting", said, program=lines)


def _cut(text: str) -> str:
    """Return the beginning of a text in one line."""
    short = " ".join(text.split())
    return short if len(short) < _LONGEST_SETTING else f"{short[:_LONGEST_SETTING]}..."


_LONGEST_SETTING = 60
"""The most characters of a setting in a message."""


def _judge_overwritten(call: Call, _run: Callable[[], Any], *, state: ReachableState) -> Difference | None:
    """Compare a call with itself after its result was overwritten, as its caller may do."""
    one = call._replace(state=None)
    state.restore()
    result = one.run()
    first, written = kept(result), []
    with ExitStack() as before:  # parts may share memory, so the one that was written last is put back first
        for path, part in parts(result.result):
            owner = _resolve(part)
            copied = outcome(partial(owner[0].copy, part)) if owner else None
            if copied and outcome(partial(_assign, [part], [_OTHER])).error is None:
                before.callback(_assign, [part], [copied.result])
                written.append(path)
        found = compare(one.run(), first, call.promise)
    state.restore()
    if found is None:
        return None
    made = program(call)
    lines = [f"first = {made.call}", *(f"first{path}[...] = {_OTHER}" for path in written)]
    said = "the result is memory that later calls read"
    found = found._replace(message=f"{said}\n{found.message}")
    return found._replace(kind=_DEPENDS, program=(*lines, *_checked(made.call, found, made)))


_OTHER = 77
"""A number that is written over results."""


def _judge_threads(
    call: Call, run: Callable[[], Any], *, other: Call, state: ReachableState, is_over: Callable[[], bool]
) -> Difference | None:
    """Compare calls in two threads with calls alone, for each operation at which the first is stopped."""
    runs, second = Interleavings(state.roots), other.bind([one.make() for one in other.recipes()])

    def begin(start: Callable[..., T], *calls: Any) -> T:
        state.restore()
        return start(*calls)

    try:
        usual = kept(begin(run_alone, run)), kept(begin(run_alone, second))
        if usual[1].error is not None:
            return None
        begin(runs.switches, run)  # from Python 3.12 on, operations are traced from a second call on
        for switch in begin(runs.switches, run):
            if is_over():
                return None
            both = begin(runs.run, run, second, switch)
            for number, (made, alone) in enumerate(zip(both, usual, strict=True)):
                if found := compare(made, alone, call.promise):
                    return _describe_race(call, other, switch, number, found)
    except DeadlockError:
        text = "two calls in threads wait for each other"
        return Difference("is not safe in threads", text, program=("# the calls would not end",))
    finally:
        state.restore()
    return None


def _describe_race(call: Call, other: Call, switch: Switch, number: int, found: Difference) -> Difference:
    """Return a difference with the place of a switch, and a program that switches there."""
    made, second = program(call), program(other, taken=len(call.recipes()))
    source = getline(switch.code.co_filename, switch.line).strip()
    where = f"line {switch.line} of {switch.code.co_name}" + (f", {source}" if source else "")
    message = f"{'the second call: ' * number}{found.message}\nwhile another thread runs at {where}"
    lines = (
        *_arrays_of(second),
        "import sys",
        "from concurrent.futures import ThreadPoolExecutor, wait",
        "pool, seconds = ThreadPoolExecutor(2), []",
        "def switch(frame, event, argument):",
        "    frame.f_trace_opcodes = True",
        f"    here = {switch.code.co_name!r}, {switch.offset}  # {where}",
        "    if event == 'opcode' and not seconds and (frame.f_code.co_name, frame.f_lasti) == here:",
        f"        seconds.append(pool.submit(lambda: {second.call}))",
        "        wait(seconds, 1)",
        "    return switch",
        "def call_first():",
        "    sys.settrace(switch)",
        "    sys._getframe().f_trace_opcodes = True  # Python 3.12 reports operations if tracing starts then",
        "    sys.settrace(switch)",
        f"    return {made.call}",
        *["pool.submit(call_first).result()"] * number,
        *_checked(("pool.submit(call_first).result()", "seconds[0].result()")[number], found, made),
    )
    return found._replace(kind="is not safe in threads", message=message, program=lines)


def _arrays_of(made: Program) -> list[str]:
    """Return the statements of a program that make its arrays."""
    return [line for line in made.lines if line.partition(" = ")[0] in made.arrays]


def _checked(call: str, found: Difference, made: Program) -> list[str]:
    """Return statements that fail if the result of a call is not the expected one."""
    said = f"  # {found.message.splitlines()[0]}"
    check = found.check.replace("{part}", f"result{found.path}")
    if not check or "{array}" in check:
        return [call + said]
    numpy = ["import numpy as np"] if "np." in check and "import numpy as np" not in made.lines else []
    return [*numpy, f"result = {call}{said}", check]
