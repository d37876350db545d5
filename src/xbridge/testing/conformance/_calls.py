"""Calls of functions as a backend gets them: one array or several, by position, without static arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbridge import to_backend
from xbridge.extend import CPU, HOST, get_backend
from xbridge.functions.libraries import functions_of
from xbridge.functions.rules import UserDerivative, latest
from xbridge.functions.treedef import ARRAY, unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Self

    from xbridge import Device
    from xbridge.functions.rules import DerivableFunction, Run
    from xbridge.functions.signature import Signature
    from xbridge.functions.treedef import TreeDef
    from xbridge.protocol import Array


class PlainCall:
    """A call of a function of a library. It converts with the public functions."""

    def __init__(
        self,
        library: str,
        fn: Callable[..., Any],
        *,
        vjp: Any = None,
        jvp: Any = None,
        signature: Signature | None = None,
    ) -> None:
        self.name, self.fn, self.library, self.array_library = "f", fn, library, HOST
        self.declared: TreeDef = ARRAY
        self.treedef: TreeDef = ("tuple", None, ("tuple", None, ARRAY), ("dict", ((), None)))
        self.numbers: tuple[Any, ...] = ()
        modes = functions_of(get_backend(library)).modes
        self.modes = None if modes is None else modes()
        self.vjp, self.jvp = vjp and UserDerivative(vjp), jvp and UserDerivative(jvp)
        self.signature = signature
        self.result: Callable[..., Any] | None = None
        self.device, self.gathers = CPU, False

    def rule(self) -> DerivableFunction:
        """Return the rule of the backend."""
        make = functions_of(get_backend(self.library)).rule
        assert make is not None
        return make(self)

    def without_rules(self, declared: TreeDef) -> Self:
        """Return the call: it has nothing that another process could not have."""
        self.declared = declared
        return self

    def flatten(self, tree: Any, xs: Sequence[Array]) -> tuple[TreeDef, list[Array]]:  # noqa: ARG002 -- no numbers
        """Return the form and the arrays of one array, or of a tuple of arrays."""
        if isinstance(tree, tuple):
            return ("tuple", None, *[ARRAY] * len(tree)), list(tree)
        return ARRAY, [tree]

    def bind(self, xs: Sequence[Array]) -> tuple[Sequence[Array], dict[str, Any]]:
        """Return the arguments of the function: the arrays themselves."""
        return xs, {}

    def unflatten(self, treedef: TreeDef, leaves: Iterable[Any]) -> Any:
        """Return the tree of a form."""
        return unflatten(treedef, iter(leaves), iter(()))

    def read_result(self, tree: Any, xs: Sequence[Array]) -> list[Array]:
        """Return the arrays of a result, and keep its form."""
        latest.treedef, arrays = self.flatten(tree, xs)
        return arrays

    def result_dtype(self, dtype: str) -> str:
        """Return the dtype of a result, which every library has."""
        return dtype

    def state(self) -> object:
        """Return what dtypes depend on, which the tests do not change."""
        return None

    def evaluate(
        self, rule: Run, xs: Sequence[Array], target: str, device: Device | None = None
    ) -> list[Array]:
        """Run a rule, and convert there and back."""
        given = [to_backend(x, self.library) for x in xs]
        return [to_backend(y, target, device=device, copy=True) for y in rule(*given)]
