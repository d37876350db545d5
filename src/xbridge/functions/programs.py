"""Shapes of calls in compiled programs, where sizes may be symbols of the compiler.

A compiler asks for the shapes of a result as expressions of its symbols. But a function gives shapes for
numbers only. So it is asked for other sizes, which show the axes that follow one, and each run compares what
that predicts with its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge.errors import FOREIGN_ERRORS, OptionError, XBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from xbridge.functions.rules import DerivableFunction, Spec
    from xbridge.functions.treedef import TreeDef

    Shapes: TypeAlias = tuple[tuple[Any, ...], ...]
    Described: TypeAlias = tuple[tuple[Spec, ...], TreeDef]

_STEP = 40
"""How much a size is changed to see what follows it: a multiple of 8, because a function may divide it."""


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
    larger = [
        n if s is None else n + _STEP * (1 + names.index(s)) for s, n in zip(symbols, sizes, strict=True)
    ]
    small = [n if s is None else 2 + (n - 2) % 4 for s, n in zip(symbols, sizes, strict=True)]
    specs, treedef = describe(sizes)
    pairs = list(zip(sizes, larger, strict=True))
    formula = ShapeFormula([], [spec.dtype for spec in specs], treedef)
    try:
        for spec, other in zip(specs, describe(larger)[0], strict=True):
            lengths = list(zip(spec.shape, other.shape, strict=True))
            formula.outputs.append([(None, a) if a == b else (pairs.index((a, b)), a) for a, b in lengths])
        is_right = formula.shapes(small) == tuple([spec.shape for spec in describe(small)[0]])
    except (XBridgeError, *FOREIGN_ERRORS):
        return None
    return formula if is_right else None


def check_formulas(rule: DerivableFunction, sizes: Sequence[int], found: tuple[Spec, ...]) -> None:
    """Raise if a result has other shapes than those that a program was compiled for."""
    shapes = tuple([spec.shape for spec in found])
    for formula in rule.formulas.values():
        if formula is not None and formula.shapes(sizes) != shapes:
            raise OptionError.build(
                f"use the result of {rule.name}",
                f"its shapes are {shapes}, and the program was compiled for {formula.shapes(sizes)}",
                "torch.compile(f, dynamic=False)",
            )
