"""A decorator that makes a Hypothesis test of a contract."""

from __future__ import annotations

from functools import partial, update_wrapper
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, cast

from xbridge.errors import CallError, MissingLibraryError
from xbridge.testing._contract import PROMISES, Contract, check, explain_unknown, read_contract

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias, Unpack

    from hypothesis import strategies as st

    Inputs: TypeAlias = "st.SearchStrategy[Any] | Callable[[str], st.SearchStrategy[Any]]"


def contract(
    *inputs: Inputs, **promises: Unpack[Contract]
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a Hypothesis test that checks the promises of a function of arrays.

    The decorated function returns what is promised about: it has the call of the tested function, and no
    assertion. As with `hypothesis.given`, its last parameters are drawn, and pytest fills in those before.

    Parameters
    ----------
    *inputs : strategy, or function from the name of a backend to a strategy
        The last arguments. A function, such as `arrays` itself, makes the test run with every library, by
        the fixture ``backend``.
    **promises
        As for `assert_contract`, except that a reference takes the arguments of the decorated function.

    Returns
    -------
    callable
        A decorator. `hypothesis.settings` and marks of pytest go above it.

    Raises
    ------
    OptionError
        `dtype` is another word, or `raises` is no exception.
    CallError
        There is no such promise, or the decorator was written without parentheses.
    MissingLibraryError
        Hypothesis is not installed.

    Examples
    --------
    >>> from hypothesis import settings
    >>> from xbridge.testing.strategies import arrays
    >>> @settings(max_examples=5)
    ... @contract(arrays("numpy", dtypes="float32", elements=(-9, 9)), dtype="kept", ulp=2)
    ... def test_square(x):
    ...     return x * x
    >>> test_square()
    """
    try:
        from hypothesis import given  # noqa: PLC0415 -- the assertions need no Hypothesis
        from hypothesis import strategies as st  # noqa: PLC0415 -- as above
    except ImportError as error:
        raise MissingLibraryError.build(
            "draw arrays", "Hypothesis is not installed", "pip install 'xbridge-array[testing]'"
        ) from error
    for word, value in promises.items():
        if word not in PROMISES:
            raise explain_unknown(word, value)
    if inputs and getattr(inputs[0], "__name__", "").startswith("test"):
        reason = "it takes the strategies of the arguments"
        raise CallError.build(f"make a contract of {inputs[0]!r}", reason, "@contract(arrays)")
    promised = read_contract(promises)

    def decorate(f: Callable[..., Any]) -> Callable[..., None]:
        before = [*signature(f).parameters.values()][: -len(inputs) or None]
        names = [one.name for one in before]
        uses_backend = not all(isinstance(one, st.SearchStrategy) for one in inputs)

        def test(*args: Any, data: st.DataObject, **kwargs: Any) -> None:
            __tracebackhide__ = True
            named = {**dict(zip(names, args, strict=False)), **kwargs}
            backend = named.get("backend", "")
            strategies = [one if isinstance(one, st.SearchStrategy) else one(backend) for one in inputs]
            drawn = [data.draw(one) for one in strategies]
            fixed = [named[name] for name in names]
            tested = update_wrapper(partial(f, *fixed), f) if fixed else f

            def choose(kinds: list[str]) -> list[str]:
                return [data.draw(st.sampled_from(kinds))]  # one: a kind may call the function thirty times

            check(tested, tuple(drawn), {}, promised, choose=choose)

        update_wrapper(test, f)
        more = [] if "backend" in names or not uses_backend else ["backend"]
        shown = [*before, *(Parameter(name, Parameter.KEYWORD_ONLY) for name in (*more, "data"))]
        test.__signature__ = Signature(shown)  # type: ignore[attr-defined] # of any function
        made: Any = given(data=st.data())(test)
        made.xbridge_contract = promised  # by which the pytest plugin knows it, and lifts the deadline
        return cast("Callable[..., None]", made)

    return decorate
