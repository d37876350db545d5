"""Calls in compiled programs, where sizes and numbers may be symbols of the compiler.

A compiler asks for the shapes of a result as expressions of its symbols. But a function gives shapes for
numbers only. So it is asked for a few sizes, polynomials are fitted to the answers, and each run compares
what they predict with its result.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from xbridge.errors import FOREIGN_ERRORS, OptionError, XBridgeError
from xbridge.functions.rules import Spec, get_or_make, latest, rules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from xbridge.functions.rules import DerivableFunction
    from xbridge.functions.treedef import TreeDef

    Find: TypeAlias = Callable[[Sequence[int], Sequence[float]], DerivableFunction]
    Shapes: TypeAlias = tuple[tuple[Any, ...], ...]
    Described: TypeAlias = tuple[tuple[Spec, ...], TreeDef]
    Terms: TypeAlias = dict[tuple[int, ...], int]

_STAND_IN = 0.5
"""The value that is assumed for a float that the compiler does not tell. A run compares the shapes."""

_SMALLEST = 2
"""The least size that a symbol stands for: a compiler treats 0 and 1 as numbers."""

_MAX_SYMBOLS = 5

_STEPS = (1, 2, 4)
"""The distances between the sizes to try, because a function may need even sizes, or divide them by 4."""


class Program:
    """A call in one compiled program, which passes the numbers of the call in each run.

    `gradients` is the mask of the inputs whose gradients the call returns, or None if it is no vjp. Gradients
    have the shapes of the inputs. So a program can be traced although the function has no derivative, and the
    error comes when the gradient is computed.
    """

    wants_outputs = False

    def __init__(self, name: str, find: Find, gradients: tuple[bool, ...] | None = None) -> None:
        self.name, self._find, self.gradients = name, find, gradients
        self.key = f"{name}#{uuid4().hex}"
        self._derived: dict[Any, Program] = {}
        self._formulas: dict[Any, ShapeFormula | None] = {}
        self._numbers: list[float] = []
        rules[self.key] = self

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
        return self.rule(ints, self._numbers).shapes(specs), latest.treedef

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


class ShapeFormula(NamedTuple):
    """The shapes of the outputs as polynomials of the sizes, of the first degree in each symbol."""

    where: list[int]
    """The index of each symbol among the sizes."""
    base: list[int]
    step: int
    outputs: list[list[Terms]]
    """For each output and each axis, the coefficient of each product of symbols."""
    dtypes: list[str]
    treedef: TreeDef

    def shapes(self, sizes: Sequence[Any]) -> Shapes:
        """Return the shapes for sizes that are numbers or symbols."""
        moves = [(sizes[i] - n) // self.step for i, n in zip(self.where, self.base, strict=True)]
        return tuple([tuple([_evaluate_terms(terms, moves) for terms in output]) for output in self.outputs])


def _evaluate_terms(terms: Terms, moves: Sequence[Any]) -> Any:
    return sum(
        factor * prod([move for move, chosen in zip(moves, term, strict=True) if chosen])
        for term, factor in terms.items()
    )


def find_formula(
    symbols: tuple[Any, ...], hints: list[int], describe: Callable[[list[int]], Described]
) -> ShapeFormula | None:
    """Return a formula that computes shapes from sizes, fitted at a few sizes; None if no polynomials fit."""
    names = [name for name in dict.fromkeys(symbols) if name is not None]
    if len(names) > _MAX_SYMBOLS:
        return None
    where = [symbols.index(name) for name in names]
    base = [hints[i] for i in where]

    def move(moves: Sequence[int]) -> list[int]:
        change = dict(zip(names, moves, strict=True))
        return [n + change.get(name, 0) for name, n in zip(symbols, hints, strict=True)]

    for step in _STEPS:
        far = [[step * (2 + i) for i in range(len(names))], [step * (9 - i) for i in range(len(names))]]
        try:
            corners: dict[tuple[int, ...], Described] = {
                corner: describe(move([step * on for on in corner]))
                for corner in product((0, 1), repeat=len(names))
            }
            others = [(sizes, describe(sizes)) for sizes in map(move, far)]
        except (XBridgeError, *FOREIGN_ERRORS):
            continue
        with suppress(XBridgeError, *FOREIGN_ERRORS):  # not every function accepts the smallest sizes
            least = move([(_SMALLEST - n) // step * step for n in base])
            others.append((least, describe(least)))
        found = [*corners.values(), *[described for _, described in others]]
        if any(_structure(described) != _structure(found[0]) for described in found):
            continue
        formula = _fit_polynomials(where, base, step, corners)
        if all(formula.shapes(sizes) == tuple([s.shape for s in specs]) for sizes, (specs, _) in others):
            return formula
    return None


def _structure(described: Described) -> object:
    """Return what is the same for all sizes."""
    specs, treedef = described
    return treedef, [(spec.dtype, len(spec.shape)) for spec in specs]


def _fit_polynomials(
    where: list[int], base: list[int], step: int, corners: dict[tuple[int, ...], Described]
) -> ShapeFormula:
    """Return the polynomials through the shapes at the corners of a cube."""
    specs, treedef = next(iter(corners.values()))
    formula = ShapeFormula(where, base, step, [], [spec.dtype for spec in specs], treedef)
    for i, spec in enumerate(specs):
        formula.outputs.append([])
        for axis in range(len(spec.shape)):
            terms = {corner: found[0][i].shape[axis] for corner, found in corners.items()}
            # The differences along each symbol are the coefficients.
            for k in range(len(where)):
                terms = {c: n - (terms[(*c[:k], 0, *c[k + 1 :])] if c[k] else 0) for c, n in terms.items()}
            formula.outputs[i].append({corner: n for corner, n in terms.items() if n})
    return formula
