"""Check what a function of arrays promises by itself, without a reference to compare it with.

A promise is checked by further calls with the same values: in another layout, in another order, in threads,
in float64. Each is a `Call` with a judge of its own, so that a failure is diagnosed and simplified as a
difference from NumPy's is.
"""

# pyright: reportTypedDictNotRequiredAccess=false
# A contract has all promises once it was read, and those of its keywords before.

from __future__ import annotations

from difflib import get_close_matches
from functools import partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

import numpy as np

from xbridge.errors import CallError, OptionError, XBridgeError
from xbridge.extend import DTYPES, category, is_inexact
from xbridge.testing import _derived, _earlier_calls, _values_promised
from xbridge.testing._call import Call, program
from xbridge.testing._derivatives import GRADIENTS
from xbridge.testing._diff import overlap, resolve
from xbridge.testing._matches import MismatchError
from xbridge.testing._outcome import (
    Difference,
    compare,
    describe_error,
    find_foreign,
    kept,
    outcome,
    parts,
)
from xbridge.testing._precision import judge_accuracy, narrow, retyped, shrink
from xbridge.testing._reachable import ReachableState
from xbridge.testing._settings import Settings
from xbridge.testing._source import AROUND, ON_REQUEST, properties_of, read_expression
from xbridge.testing._without import excluded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge.protocol import Array
    from xbridge.testing._outcome import Outcome
    from xbridge.testing._source import Recipe


class Contract(TypedDict, total=False):
    """The promises of a function: keywords of `assert_contract`, with its defaults for those left out."""

    dtype: str | None
    shape: Literal["kept"] | Callable[..., tuple[int, ...]] | None
    device: Literal["kept"] | None
    aliases: bool | None
    ulp: float | None
    nan: Literal["propagates", "ignored"] | None
    overflow: bool | None
    batched: bool
    lazy: bool
    differentiable: bool
    reference: Callable[..., Any] | None
    layouts: bool
    empty: bool
    repeatable: bool
    threads: bool
    raises: type[Exception] | tuple[type[Exception], ...]


PROMISES = (*Contract.__annotations__,)


def assert_contract(  # noqa: PLR0913 -- independent promises
    f: Callable[..., Any],
    /,
    *args: Any,
    dtype: str | None = None,
    shape: Literal["kept"] | Callable[..., tuple[int, ...]] | None = None,
    device: Literal["kept"] | None = None,
    aliases: bool | None = None,
    ulp: float | None = None,
    nan: Literal["propagates", "ignored"] | None = None,
    overflow: bool | None = None,
    batched: bool = False,
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
        several; ``"kind"`` for one of its kind, such as any floating dtype; or a name, such as ``"bool"``. A
        Python float or complex number is no result with a dtype.
    shape : "kept" or callable, optional
        The shape of every array in the result: ``"kept"`` for that to which the arguments broadcast, or a
        function with a parameter for the shape of each array, such as ``lambda x: x[:-1]`` for a reduction of
        the last axis.
    device : "kept", optional
        Results are on the device of the arguments in any case. With ``"kept"``, a function of torch is also
        called while torch's default device is ``meta``, so that a tensor that it makes without ``device=`` is
        found on a machine without a GPU. 0-d tensors count, which torch takes beside those of a GPU.
    aliases : bool, optional
        False if no result shares memory with an argument, in any layout, float32 or float64; True if each
        does. Arrays that nobody can write, such as those of JAX and Dask, share memory without harm and are
        left out.
    ulp : float, optional
        The largest error of floating results, in units in the last place. The function is called with the
        arguments in float32, or in the narrower dtype that they have, and in float64. Results in float64 must
        have its precision: a function that rounds to float32 inside is inaccurate for any number. The
        arguments are also divided by a power of two, so that a function that loses half of the digits near
        zero, such as ``log(1 + x)``, is inaccurate for any number too.
    nan : {"propagates", "ignored"}, optional
        Whether a NaN as the first number of an argument makes every floating result contain a NaN, or none.
    overflow : bool, optional
        False if no integer wraps around: the numbers of the result are those of the same call in int64.
    batched : bool
        Whether the first axis counts examples that do not depend on each other: the first row of the result
        is the result for the first row of each array of that length.
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
        conjugation, and with other numbers before and after an array, which nothing may read. Layouts that
        the mark or the option ``without`` names are left out.
    empty : bool
        Whether arrays without elements are taken, if the same call with elements is, or refused by a
        ValueError, as by NumPy's ``max``. With False, nothing is promised for them, and a test that draws one
        passes.
    repeatable : bool
        Whether a result depends on the arguments alone, not on earlier calls or on what is written into their
        results; later calls leave it as it is; and settings of the process, such as NumPy's error handling or
        a seed, stay as they are. A buffer that every call fills and returns breaks this, and so
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
    CallError
        A keyword is nearly a promise, and the function does not take it.

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
    def first_half(x):
        return x[:x.size // 2]
    a = np.array([1.0, 1.0])
    result = first_half(a)  # the result has memory in common with array 0
    assert not np.shares_memory(result, a)
    """
    __tracebackhide__ = True
    promises: Any = {name: value for name, value in locals().items() if name in PROMISES}
    for word, value in kwargs.items():
        if get_close_matches(word, PROMISES, 1) and not _takes(f, word):
            raise explain_unknown(word, value)
    check(f, args, kwargs, promises)


def check(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    promised: Contract,
    is_over: Callable[[], bool] = bool,
    choose: Callable[[list[str]], list[str]] = list,
) -> bool:
    """Raise an AssertionError if a function breaks a contract. Return False if the time was over before.

    The further calls are in groups; `choose` picks some of them by their names.
    """
    __tracebackhide__ = True
    promised = read_contract(promised)
    given: list[Array] = []
    state, settings = ReachableState(f), Settings()
    call = Call.of(f, args, kwargs, given)._replace(by=partial(_judge_result, promised=promised), state=state)
    groups = _groups(call, promised, state, settings, is_over)
    chosen = choose([*groups]) if groups else []
    if not promised["empty"] and any(one.values.size == 0 for one in call.recipes()):
        return True
    broken = None
    try:
        first = outcome(partial(f, *args, **kwargs))
        if isinstance(first.error, promised["raises"]):
            return True
        trials = (trial for name in chosen for trial in groups[name]())
        broken = (found := _break(call, given, first, promised)) and (call, found)
        while broken is None and (trial := next(trials, None)):
            if is_over():
                return False
            state.restore()
            broken = (found := trial.judge()) and (trial, found)
    finally:
        state.restore()
        settings.restore()
    if broken:
        raise MismatchError(*broken)  # in one line: by that, Hypothesis knows if two failures are the same
    return True


def explain_unknown(word: str, value: object) -> CallError:
    """Return the error for a keyword that is no promise, with the promise that is meant."""
    near = get_close_matches(word, PROMISES, 1)
    reason = f"the promises are {', '.join(PROMISES)}"
    return CallError.build(f"hold a function to {word}", reason, f"{near[0]}={value!r}" if near else "ulp=4")


def _takes(f: Callable[..., Any], word: str) -> bool:
    """Return True if a function may take a keyword; one without a signature may."""
    try:
        parameters = signature(f).parameters
    except (TypeError, ValueError):
        return True
    return word in parameters or any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values())


def read_contract(promises: Contract) -> Contract:
    """Return a contract with all promises; raise if a word is none, or what `raises` names is no error."""
    promised = cast("Contract", assert_contract.__kwdefaults__) | promises
    if promised["dtype"] not in (None, "kept", "kind", *DTYPES):
        reason = "it is 'kept', 'kind' or the name of a dtype"
        raise OptionError.build(f"hold a function to dtype={promised['dtype']!r}", reason, "dtype='kept'")
    for word, given, known in (
        ("shape", None if callable(promised["shape"]) else promised["shape"], ["kept"]),
        ("device", promised["device"], ["kept"]),
        ("nan", promised["nan"], ["propagates", "ignored"]),
    ):
        if given not in (None, *known):
            reason = f"it is {' or '.join(map(repr, known))}"
            raise OptionError.build(f"hold a function to {word}={given!r}", reason, f"{word}={known[0]!r}")
    raises: Any = promised["raises"]
    for one in raises if isinstance(raises, tuple) else (raises,):
        if not (isinstance(one, type) and issubclass(one, Exception)):
            reason = "it is an exception class, or a tuple of them"
            raise OptionError.build(f"hold a function to raises={raises!r}", reason, "raises=ValueError")
    return promised


def _groups(
    call: Call, promised: Contract, state: ReachableState, settings: Settings, is_over: Callable[[], bool]
) -> dict[str, Callable[[], Iterator[Call]]]:
    """Return the further calls that a contract requires, each with the function that judges it.

    The names depend on the function, its library and its promises alone, so that a test can draw one.
    """
    library = call.promise.backend
    is_known = promised["repeatable"]
    is_threaded = is_known and promised["threads"] and not state.is_empty
    shares_nothing = partial(_judge_result, promised=read_contract({"aliases": False, "raises": Exception}))
    wanted: dict[str, tuple[object, Callable[[], Iterator[Call]]]] = {
        "earlier calls": (is_known, partial(_earlier_calls.repetitions, call, state)),
        "written arrays": (is_known, partial(_earlier_calls.writes, call, state, settings)),
        "aliases": (
            promised["aliases"] is False,
            lambda: (one._replace(by=shares_nothing) for one in retyped(call)),
        ),
        "reference": (
            promised["reference"] is not None,
            lambda: iter([call._replace(reference=promised["reference"], options={"dtype": "any"}, by=None)]),
        ),
        "precision": (promised["ulp"] is not None, partial(_in_float64, call, promised)),
        "NaN": (
            promised["nan"] is not None,
            partial(_values_promised.with_nan, call, promised["nan"], promised["raises"]),
        ),
        "integers": (promised["overflow"] is False, partial(_values_promised.in_int64, call)),
        "examples": (promised["batched"], partial(_values_promised.examples, call)),
        "default device": (promised["device"] is not None, partial(_values_promised.on_meta_device, call)),
        "lazy": (promised["lazy"] and library in _derived.LAZY, lambda: iter([_derived.as_lazy(call)])),
        "gradient": (
            promised["differentiable"] and library in GRADIENTS,
            partial(_differentiated, call),
        ),
        "layouts": (promised["layouts"], partial(_in_each_layout, call, promised)),
        "empty": (promised["empty"], partial(_emptied, call, promised)),
        "threads": (is_threaded, partial(_earlier_calls.races, call, state, is_over)),
    }
    return {name: trials for name, (is_wanted, trials) in wanted.items() if is_wanted}


def _in_float64(call: Call, promised: Contract) -> Iterator[Call]:
    if promised["ulp"] is not None and any(is_inexact(one.dtype) for one in call.recipes()):
        small = call.map(narrow)
        yield small._replace(by=partial(judge_accuracy, ulp=promised["ulp"]))
        yield small.map(shrink)._replace(by=partial(judge_accuracy, ulp=promised["ulp"], is_first=False))


def _differentiated(call: Call) -> Iterator[Call]:
    """Yield the call to be differentiated, if its arguments are finite numbers."""
    inexact = [one.values for one in call.recipes() if is_inexact(one.dtype)]
    if inexact and all(np.isfinite(values).all() for values in inexact):
        yield _derived.as_differentiable(call)


# -- the result --------------------------------------------------------------------------------------


def _judge_result(call: Call, *, promised: Contract) -> Difference | None:
    """Judge a call by its result alone."""
    return _break(call, *call.perform(), promised)


def _break(call: Call, arrays: list[Array], made: Outcome, promised: Contract) -> Difference | None:
    """Return the first promise that the result of a call breaks."""
    if made.error is not None:
        return None if isinstance(made.error, promised["raises"]) else describe_error(made.error)
    if changed := call.changed(arrays):
        return changed
    for path, part in parts(made.result):
        if promised["dtype"] is not None and type(part) in (float, complex):
            name = type(part).__name__
            said = f"result{path} is a Python {name}, which has no dtype"
            return Difference("dtype", said, path, f"assert not isinstance({{part}}, {name})")
        try:
            backend, x = resolve(part, "compare")
        except XBridgeError:
            continue
        info = backend.array_info(x)
        found = (
            None if isinstance(part, np.generic) else find_foreign(backend.name, info.device, call.promise)
        )
        if promised["dtype"] is not None:
            found = found or _break_dtype(call, info.dtype, promised["dtype"])
        if promised["shape"] is not None:
            found = found or _break_shape(call, tuple(info.shape), promised["shape"])
        if promised["aliases"] is not None and not backend.assumes_immutable:
            found = found or _break_aliases(call, arrays, x, aliases=promised["aliases"])
        if found:
            return found._replace(path=path, message=found.message.replace("result", f"result{path}", 1))
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


def _break_shape(
    call: Call, shape: tuple[int, ...], promised: Literal["kept"] | Callable[..., tuple[int, ...]]
) -> Difference | None:
    """Compare the shape of a result with the one that the shapes of the arguments give."""
    given = [one.values.shape for one in call.recipes()]
    wanted = np.broadcast_shapes(*given) if promised == "kept" else tuple(promised(*given))
    if shape == wanted or any(n != n for n in shape):  # noqa: PLR0124 -- a NaN, for an unknown length
        return None
    return Difference(
        "shape", f"the result has the shape {shape}, not {wanted}", check=f"assert {{part}}.shape == {wanted}"
    )


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


# -- layouts and sizes -------------------------------------------------------------------------------


def _in_each_layout(call: Call, promised: Contract) -> Iterator[Call]:
    """Yield the call in every layout: that of all arrays that have it, and of each alone."""
    call = call._replace(options={"beside": "for plain arrays", "warnings": False})  # as of a slower layout
    recipes = [one._replace(properties=()) for one in call.recipes()]
    alone: Contract = {**promised, "aliases": promised["aliases"] and None}
    left_out = {*ON_REQUEST, *excluded()}
    names = [word for one in recipes for word in properties_of(one.backend) if word not in left_out]
    for name in dict.fromkeys(names):
        relaid = {n: x for n, one in enumerate(recipes) if (x := _with_layout(one, name))}
        ways = [relaid] * bool(relaid) + [{n: x} for n, x in relaid.items() if len(relaid) > 1]
        for way in ways:
            laid = call.fill(way.get(n, one) for n, one in enumerate(recipes))
            yield laid._replace(by=partial(_judge_layout, promised=alone))


def _with_layout(one: Recipe, name: str) -> Recipe | None:
    """Return an array with a property, with equal rows if it needs them; None if it is impossible."""
    values = one.values
    folded = one._replace(values=np.repeat(values[:1], len(values), 0)) if values.ndim else one
    for each in (one, folded):
        if each.takes(name):
            return each._replace(properties=(name,))
    return None


def _judge_layout(call: Call, *, promised: Contract) -> Difference | None:
    """Judge the result of a call, and compare it with one on the same values in the simplest layout."""
    arrays, made = call.perform()
    if made.error is None and (broken := _break(call, arrays, made, promised)):
        return broken
    made, plain = kept(made), call.map(lambda one: one._replace(properties=()))
    usual = plain.run()
    found = compare(made, usual, call.promise)
    # What is read beside an array differs in plain ones from call to call.
    steady = (call, made) if any(AROUND in one.properties for one in call.recipes()) else (plain, usual)
    is_unstable = found is not None and found.kind == "values" and _depends_on_last_bits(*steady)
    return None if is_unstable else found


def _depends_on_last_bits(call: Call, made: Outcome) -> bool:
    """Return True if other last bits of the arguments change the result as much as a fault does."""

    def nudge(one: Recipe, sign: int) -> Recipe:
        if one.values.dtype.kind != "f":
            return one
        steps = 4 * sign * np.resize((1, -1, -1, 1, 1), one.values.shape) * np.finfo(one.values.dtype).eps
        return one._replace(values=(one.values * (1 + steps)).astype(one.values.dtype))

    nudged = (call.map(partial(nudge, sign=sign)) for sign in (1, -1))
    return any(compare(one.run(), made, call.promise) is not None for one in nudged)


def _emptied(call: Call, promised: Contract) -> Iterator[Call]:
    """Yield the call with arrays without elements; axes of one length may belong together, or not."""
    recipes = call.recipes()
    shapes = [one.values.shape for one in recipes]
    if not any(shapes) or any(0 in shape for shape in shapes):
        return
    axes = [(n, axis) for n, shape in enumerate(shapes) for axis in range(len(shape))]
    alike = [(n, axis) for n, axis in axes if shapes[n][axis] == shapes[axes[0][0]][0]]

    def clear(cut: list[tuple[int, int]]) -> Iterator[Recipe]:
        for n, one in enumerate(recipes):
            kept = tuple(slice(0 if (n, axis) in cut else None) for axis in range(one.values.ndim))
            yield one.with_values(one.values[kept])

    errors = promised["raises"] if isinstance(promised["raises"], tuple) else (promised["raises"],)
    by = partial(_judge_result, promised={**promised, "raises": (*errors, ValueError)})  # as NumPy's `max`
    ways = [(n, axis) for n, axis in alike if axis == 0], axes[:1], alike
    together, *others = (call.fill(clear(way))._replace(by=by) for way in ways)
    yield together._replace(by=partial(_judge_empty, judge=by, others=others))


def _judge_empty(
    call: Call, *, judge: Callable[[Call], Difference | None], others: list[Call]
) -> Difference | None:
    """Judge the result of a call with empty arrays."""
    found = judge(call)
    if found is None or not found.kind.startswith("raises "):
        return found
    fail = all(other.judge() for other in others)
    return found._replace(kind=f"{found.kind} for empty arrays") if fail else None
