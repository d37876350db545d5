"""What a library offers to aligned functions: five functions, each of them optional.

- `rule(call)`: the rule of a function of the library, which has derivatives. A call has the function, the
  structure of its arguments, and all that the user gives beside them. Without this function, calls from other
  libraries have no derivatives.
- `check_call(name)`: raise if a function of the library cannot run in this thread now.
- `modes()`: the modes of this thread that change what a function of the library returns. The result is
  hashable. It is the `modes` of the call that `rule` gets, whose function runs in these modes wherever it
  runs.
- `run(rule, xs)`: run a rule on arrays of the library, within its graphs and transforms, and return a
  sequence of arrays. A library whose backend has no `follows` runs only rules of functions with a signature,
  to compute them later.
- `trace(key, xs, numbers)`: add a call to the program that a compiler of the library traces, and return a
  sequence of arrays. The key stands for the call in `xbridge.functions.programs`. A compiler follows this
  function.

A backend outside of xbridge has them in one object, under the name `functions`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xbridge.errors import OptionError
from xbridge.extend import HOST, get_backend, tracing

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.functions.rules import Call, DerivableFunction
    from xbridge.protocol import Backend

_INDEX = {
    "dask": {"run": "dask"},
    "jax": {"rule": "jax.rules", "check_call": "jax.rules", "run": "jax.calls"},
    "numpy": {"rule": "numpy"},
    "torch": {"rule": "torch.rules", "modes": "torch.private", "run": "torch.calls", "trace": "torch.calls"},
}
"""The module of each function, which is imported when the function is needed."""


class _Found:
    """The functions that were needed, as attributes: a compiler does not guard those of a class."""


def function_of(backend: Backend, word: str) -> Callable[..., Any] | None:
    """Return a function of a library by one of the five words; None if the library does not have it."""
    found: Callable[..., Any] | None
    if backend.functions is not None:
        found = getattr(backend.functions, word, None)
    else:
        found = getattr(_Found, _find(backend.name, word))
    return found


@tracing.constant_in_traces
def _find(library: str, word: str) -> str:
    """Find a function, if that was not done, and return the name of its attribute.

    The name and not the function, because a compiler keeps the result of a call at trace time in a program.
    """
    name = f"{word}_{library}"
    if name not in vars(_Found):
        module = _INDEX.get(library, {}).get(word)
        setattr(_Found, name, module and getattr(import_module(f"xbridge.functions.{module}"), word))
    return name


def rule_of(call: Call) -> DerivableFunction:
    """Return the rule of a call, by its library or else by NumPy's functions. It is made once."""
    if call.rule is None:
        for how in ("vjp", "jvp") if call.library != HOST else ():
            if getattr(call.given, how) is not None:
                raise OptionError.build(
                    f"call {call.name} with {how}=",
                    f"it is a function of {call.library}, and only functions of numpy take a derivative",
                    f"the same without {how}=, or backend='numpy'",
                )
        make = function_of(get_backend(call.library), "rule") or function_of(get_backend(HOST), "rule")
        assert make is not None  # noqa: S101 -- NumPy has one
        made: DerivableFunction = make(call)
        call.rule = made
    return call.rule
