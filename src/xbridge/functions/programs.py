"""Calls in compiled programs, where sizes and numbers may be symbols of the compiler.

A compiler asks for the shapes of a result as expressions of its symbols. But a function gives shapes for
numbers only. So it is asked for other sizes, which show the axes that follow one, and each run compares what
that predicts with its result.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4
from weakref import WeakValueDictionary

from xbridge.errors import FOREIGN_ERRORS, OptionError, XBridgeError
from xbridge.functions.rules import Spec, get_or_make

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from xbridge.functions.rules import DerivableFunction, Described, Mask
    from xbridge.functions.treedef import TreeDef

    Find: TypeAlias = Callable[[Sequence[int], Sequence[float]], DerivableFunction]
    Shapes: TypeAlias = tuple[tuple[Any, ...], ...]

_STAND_IN = 0.5
"""The value that is assumed for a float that the compiler does not tell. A run compares the shapes."""

_STEP = 40
"""How much a size is changed to see what follows it: a multiple of 8, because a function may divide it."""

programs: WeakValueDictionary[str, Program] = WeakValueDictionary()
"""Calls by key, for compiled programs, which can hold no object but a string."""


class Program:
    """A call in one compiled program, which passes the numbers of the call in each run.

    `gradients` is the mask of the inputs whose gradients the call returns, or None if it is no vjp. Gradients
    have the shapes of the inputs. So a program can be traced although the function has no derivative, and the
    error comes when the gradient is computed.
    """

    wants_outputs = False

    def __init__(self, name: str, find: Find, gradients: Mask | None = None) -> None:
        self.name, self._find, self.gradients = name, find, gradients
        self.key = f"{name}#{uuid4().hex}"
        self._derived: dict[Any, Program] = {}
        self._formulas: dict[Any, ShapeFormula | None] = {}
        self._numbers: list[float] = []
        programs[self.key] = self

    def rule(self, ints: Sequence[int], floats: Sequence[float]) -> DerivableFunction:
        """Return the rule for the numbers of a run."""
        rule = self._find(ints, floats)
        self.wants_outputs = rule.wants_outputs
        return rule

    def derive(self, how: str, *what: Any) -> Program:
        """Return the program of a derivative, as `DerivableFunction.derive` returns its rule."""

        def find(ints: Sequence[int], floats: Sequence[float]) -> DerivableFunction:
            return self.rule(ints, floats).derive(how, *what)

        return get_or_make(
            self._derived, (how, what), lambda: Program(f"the {how} of {self.name}", find, what[0])
        )

    def describe(
        self, ints: Sequence[int], floats: Sequence[float | None], specs: tuple[Spec, ...]
    ) -> Described:
        """Describe the outputs. For a float that is not known, that of an earlier description is used."""
        known = self._numbers or [_STAND_IN] * len(floats)
        self._numbers = [old if n is None else n for n, old in zip(floats, known, strict=True)]
        return self.rule(ints, self._numbers).outputs(specs)

    def formula(
        self, symbols: tuple[Any, ...], hints: list[int], describe: Callable[[list[int]], Described]
    ) -> ShapeFormula | None:
        """Return the formula of a call with symbols for some sizes. A size that is a number has None."""
        key = tuple(zip(symbols, hints, strict=True))
        if key not in self._formulas:
            self._formulas[key] = find_formula(symbols, hints, describe)
        return self._formulas[key]

    def check(self, sizes: list[int], found: tuple[Spec, ...]) -> None:
        """Raise if a result has other shapes than those that its program was compiled for."""
        shapes = tuple([spec.shape for spec in found])
        for formula in self._formulas.values():
            if formula is not None and formula.shapes(sizes) != shapes:
                raise OptionError.build(
                    f"use the result of {self.name}",
                    f"its shapes are {shapes}, and the program was compiled for {formula.shapes(sizes)}",
                    "torch.compile(f, dynamic=False)",
                )


def key_of(rule: DerivableFunction) -> str:
    """Return the key of a call of a rule, which identifies it in this process and in no other."""
    if rule.program is None:  # of several threads, the first one sets it for all
        program = Program(rule.name, lambda ints, floats: rule)  # noqa: ARG005 -- it has no numbers
        vars(rule).setdefault("program", program)
    assert isinstance(rule.program, Program)  # noqa: S101 -- no other module sets it
    return rule.program.key


class ShapeFormula(NamedTuple):
    """The shapes of the outputs: each axis has one length always, or that of a size of the inputs."""

    outputs: list[list[tuple[int | None, int]]]
    """For each axis of each output the index of the size, if it has one, or None and the length."""
    dtypes: list[str]
    treedef: TreeDef

    def shapes(self, sizes: Sequence[Any]) -> Shapes:
        """Return the shapes for sizes that are numbers or symbols."""
        return tuple([tuple([n if at is None else sizes[at] for at, n in output]) for output in self.outputs])


def find_formula(
    symbols: tuple[Any, ...], sizes: list[int], describe: Callable[[list[int]], Described]
) -> ShapeFormula | None:
    """Return a formula that is right for the sizes, for larger and for small ones; None if there is none.

    A size that is no symbol of the compiler has None in `symbols`, and is never changed.
    """
    names = list(dict.fromkeys(symbols))
    pairs = [
        (n, n if name is None else n + _STEP * (1 + names.index(name)))
        for name, n in zip(symbols, sizes, strict=True)
    ]
    small = [n if name is None else 2 + (n - 2) % 4 for name, n in zip(symbols, sizes, strict=True)]
    try:
        specs, treedef = describe(sizes)
        formula = ShapeFormula([], [spec.dtype for spec in specs], treedef)
        others, other = describe([larger for _, larger in pairs])
        for spec, its in zip(specs, others, strict=True):
            lengths = list(zip(spec.shape, its.shape, strict=True))
            formula.outputs.append([(None, a) if a == b else (pairs.index((a, b)), a) for a, b in lengths])
    except (XBridgeError, *FOREIGN_ERRORS):
        return None
    with suppress(XBridgeError, *FOREIGN_ERRORS):  # not every function accepts the smallest sizes
        if formula.shapes(small) != tuple([spec.shape for spec in describe(small)[0]]):
            return None
    return formula if other == treedef else None
