"""One line that tests a function of arrays: the same call with NumPy gives the same outcome.

A failure is diagnosed when its message is read, so that Hypothesis shrinks at full speed. The diagnosis
repeats the call without one property after the other. It prints a program of the simplest call that fails,
which does not need xbridge, and was run before.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from xbridge.errors import OptionError
from xbridge.testing._call import Call, minimal, program
from xbridge.testing._findings import Finding
from xbridge.testing._outcome import MOST_LISTED, outcome
from xbridge.testing._settings import Settings
from xbridge.testing._source import definition_of, is_described

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.protocol import Array
    from xbridge.testing._call import Program
    from xbridge.testing._outcome import Difference
    from xbridge.testing._source import Recipe


_MOST_WRITTEN = 1000
"""The most numbers of an array in a program."""

_LONGEST = 20_000
"""The most characters of what a difference adds to a program, such as the arrays of another call."""


class MismatchError(AssertionError):
    """A call with arrays of a library differs from the same call with NumPy's.

    Attributes
    ----------
    finding : Finding
        The function, the property that makes it fail, the library, the problem and a program.
    """

    def __init__(self, call: Call, difference: Difference) -> None:
        super().__init__(difference.message)
        self._call, self._difference = call, difference

    @cached_property
    def finding(self) -> Finding:
        """The diagnosis of the failure."""
        return diagnose(self._call, self._difference)

    def __str__(self) -> str:
        found = self.finding
        head = f"{found.function} {found.problem} with {found.backend}: {found.cause}"
        return f"{head}\n{self._difference.message}\n\n{found.program}"


def diagnose(call: Call, difference: Difference) -> Finding:
    """Return the finding of a call that fails: with its necessary properties alone, and short arrays."""
    if any(one.values.size > MOST_LISTED for one in call.recipes()):
        call = _shortened(call, difference.kind)
    simplest, needed = minimal(call, difference.kind)
    found = simplest.judge() or difference
    promise = call.promise
    text = reproduction(simplest, found)
    if call.state is not None:
        call.state.restore()
    name = getattr(call.f, "__name__", type(call.f).__name__)
    return Finding(name, promise.backend, difference.kind, tuple(needed), found.message, text)


def _shortened(call: Call, kind: str) -> Call:
    """Return the call with shorter arrays, as short as they can be halved without a change of the problem."""

    def cut(one: Recipe, side: int, length: int) -> Recipe:
        keep = tuple(slice(length if n == side else None) for n in one.values.shape)
        return one.with_values(one.values[keep])

    sides = {side for one in call.recipes() for side in one.values.shape}
    for side in sorted(sides, reverse=True):
        length = side
        while length > 1:
            again = call.map(partial(cut, side=length, length=length // 2))
            found = again.judge()
            if found is None or found.kind != kind:
                break
            call, length = again, length // 2
    return call


def assert_matches_numpy(
    f: Callable[..., Any],
    /,
    *args: Any,
    reference: Callable[..., Any] | None = None,
    dtype: Literal["same", "kind", "any"] = "same",
    rtol: float | None = None,
    ulp: float | None = None,
    errors: bool = True,
    warnings: bool = True,
    **kwargs: Any,
) -> None:
    """Assert that a function does the same with the given arrays as with NumPy arrays of the same values.

    The arguments choose the library that is tested. With NumPy arrays and no `reference`, NumPy is compared
    with itself, so only a change of the arguments is found. Each part of the results is compared, in tuples,
    lists, dicts, named tuples and dataclasses. Lazy results are computed.

    Parameters
    ----------
    f : callable
        The function.
    *args, **kwargs
        Its arguments. Arrays of any registered library, at any depth of lists, tuples and dicts, are replaced
        by NumPy's for the second call. They must be of one library, on one device.
    reference : callable, optional
        The function for NumPy's arrays; `f` itself by default.
    dtype : {"same", "kind", "any"}
        How the dtypes of the results agree: the same, of one kind, such as two floating dtypes, or any.
    rtol, ulp : float, optional
        The relative tolerance, or the same in units in the last place. By default that of `assert_close`.
    errors : bool
        Whether both calls must raise if one does.
    warnings : bool
        Whether a warning of a class that NumPy's call does not give is a failure. A RuntimeWarning is not.

    Raises
    ------
    AssertionError
        The outcomes differ, or the function changed an argument. The message names the property of the arrays
        that makes the function fail, such as ``neg`` or ``NaN``, and has a program without xbridge.
    OptionError
        `dtype` is another word, or both tolerances are given.

    Examples
    --------
    >>> import torch
    >>> assert_matches_numpy(lambda x, y: x + y, torch.arange(3.0).flip(0), torch.ones(3))
    >>> def double(x):
    ...     x *= 2
    ...     return x
    >>> assert_matches_numpy(double, torch.ones(2))
    Traceback (most recent call last):
    xbridge.testing._matches.MismatchError: double changes its input with torch: fails for plain arrays
    array 0 was [1.0, 1.0] and became [2.0, 2.0]
    <BLANKLINE>
    import torch
    def double(x):
        x *= 2
        return x
    a = torch.tensor([1.0, 1.0], dtype=torch.float64)
    import numpy as np
    before = np.array(a.numpy(force=True))
    double(a)  # array 0 was [1.0, 1.0] and became [2.0, 2.0]
    np.testing.assert_array_equal(a.numpy(force=True), before)
    """
    __tracebackhide__ = True
    if dtype not in ("same", "kind", "any"):
        raise OptionError.build(
            f"compare with dtype={dtype!r}", "it is 'same', 'kind' or 'any'", "dtype='kind'"
        )
    if rtol is not None and ulp is not None:
        raise OptionError.build("compare with rtol and ulp", "one of them decides", "ulp=4")
    options = {"dtype": dtype, "rtol": rtol, "ulp": ulp, "errors": errors, "warnings": warnings}
    given: list[Array] = []
    call = Call.of(f, args, kwargs, given)._replace(reference=reference, options=options)
    if found := call.compare(given, outcome(partial(f, *args, **kwargs))):
        raise MismatchError(call, found)


# -- programs ------------------------------------------------------------------------------------


def reproduction(call: Call, found: Difference) -> str:
    """Return a program without xbridge that shows a difference. It was run, or a comment says why not."""
    if not all(is_described(one.backend) for one in call.recipes()):
        return f"# no program: the kit has no source code for arrays of {call.promise.backend}"
    sizes = [one.values.size for one in call.recipes()]
    if max(sizes, default=0) > _MOST_WRITTEN or sum(map(len, found.program)) > _LONGEST:
        return "# no program: its arrays would be too long to read"
    text = "\n".join(_lines(call, program(call), found))
    raised = _run(text, call.f)
    is_other = isinstance(raised, NameError | SyntaxError | None)  # as of a program that is incomplete
    if found.kind.startswith("raises "):
        is_other = type(raised).__name__ != found.kind.split()[1]
    if is_other:
        return text + "\n# this program does not fail: the failure needs the arrays of the kit"
    return text if call.path or definition_of(call.f) else text + "\n# f is the function of the test"


def _run(text: str, f: Callable[..., Any]) -> BaseException | None:
    """Run a program, and return what it raises. Settings are put back."""
    settings = Settings()
    try:
        return outcome(partial(exec, text, {"f": f})).error
    finally:
        settings.restore()


def _lines(call: Call, made: Program, found: Difference) -> list[str]:
    """Return the lines of a program: the call with the message, and what fails."""
    said = f"  # {found.message.splitlines()[0]}"
    if found.program:
        return [*made.lines, *found.program]
    if found.kind == "does not raise":
        tail = ["except Exception:", "    pass", "else:", "    raise AssertionError('it does not raise')"]
        return [*made.lines, "try:", f"    {made.call}{said}", *tail]
    if found.kind.startswith(("raises", "warns")):
        is_lazy = call.promise.backend == "dask"
        warns = ["import warnings", "warnings.simplefilter('error')"] if found.kind[0] == "w" else []
        whole = f"dask.compute({made.call})" if is_lazy else made.call
        return [*["import dask"] * is_lazy, *made.lines, *warns, whole + said]
    return [*made.lines, *made.checked(found)]
