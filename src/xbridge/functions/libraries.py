"""What a library offers to aligned functions: five optional names, which each library's module writes here.

A backend outside of xbridge has them in one object, under the name `functions`.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from xbridge.errors import OptionError
from xbridge.extend import HOST, get_backend, tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xbridge.functions.rules import Call, DerivableFunction
    from xbridge.protocol import Array, Backend

_INDEX = {name: f"xbridge.functions.{name}" for name in ("dask", "jax", "numpy", "torch")}


class LibraryFunctions(ModuleType):
    """The functions that a library writes; None for each of the others.

    It is a module, because torch's compiler can follow those.
    """

    rule: Callable[[Call], DerivableFunction] | None = None
    """`rule(call)`: the rule of a function of the library, which has derivatives.

    A call has the function, the structure of its arguments, and all that the user gives beside them. Without
    this function, calls from other libraries have no derivatives.
    """
    check_call: Callable[[str], None] | None = None
    """`check_call(name)`: raise if a function of the library cannot run in this thread now."""
    modes: Callable[[], object] | None = None
    """`modes()`: the modes of this thread that change what a function of the library returns.

    The result is hashable. It is the `modes` of the call that `rule` gets, whose function runs in these modes
    wherever it runs.
    """
    run: Callable[[DerivableFunction, list[Array]], Sequence[Array]] | None = None
    """`run(rule, xs)`: run a rule on arrays of the library, within its graphs and transforms.

    A library whose backend has no `follows` runs only rules of functions with a signature, to compute them
    later.
    """
    trace: Callable[[str, list[Array], list[Any]], Sequence[Array]] | None = None
    """`trace(key, xs, numbers)`: add a call to the program that a compiler of the library traces.

    The key stands for the call in `xbridge.functions.programs`. A compiler follows this function.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend.name)
        given = import_module(_INDEX[backend.name]) if backend.name in _INDEX else backend.functions
        names = LibraryFunctions.__annotations__
        vars(self).update({name: getattr(given, name, None) for name in names}, backend=backend)


class _Found:
    """The functions of each library, as attributes: a compiler does not guard those of a class."""


def functions_of(backend: Backend) -> LibraryFunctions:
    """Return what a library offers to aligned functions."""
    found: LibraryFunctions = getattr(_Found, _find(backend.name))
    return found


@tracing.constant_in_traces
def _find(name: str) -> str:
    """Find the functions of a library, if that was not done, and return the name of their attribute.

    The name and not the functions, because a compiler keeps the result of a call at trace time in a program.
    """
    backend = get_backend(name)
    found = vars(_Found).get(name)
    if found is None or found.backend is not backend:
        setattr(_Found, name, LibraryFunctions(backend))
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
        make = functions_of(get_backend(call.library)).rule or functions_of(get_backend(HOST)).rule
        assert make is not None  # noqa: S101 -- NumPy has one
        call.rule = make(call)
    return call.rule
