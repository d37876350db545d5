"""Differentiate tangents by reverse mode.

Torch tests its derivatives of gradients, but not those of tangents, which are wrong for some functions, such
as `torch.linalg.solve`. They follow from gradients: if ``G(c, x)`` is the gradient of a function for the
cotangent ``c``, and ``J(x) v`` its tangent, then ``<c, J(x) v> == <G(c, x), v>`` for every ``c``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from xbridge.functions.rules import select
from xbridge.functions.treedef import ARRAY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xbridge.functions.rules import TracedFunction

    Mask = tuple[bool, ...]
    Tensors = Sequence[torch.Tensor]


class Tangents(NamedTuple):
    """The tangents of a function: of the outputs in the mask `outs`, for tangents of the inputs in `ins`.

    Their inputs are the tangents, a mark, and the inputs of the function.
    """

    rule: TracedFunction
    ins: Mask
    outs: Mask

    def by_gradients(self) -> Callable[..., Any]:
        """Return the function of (*tangents, mark, *xs) for the tangents, without forward mode."""
        at, seeds, count = sum(self.ins), sum(self.outs), len(self.ins)
        pull = self._pull((True,) * seeds)
        along = pull.vjp_of((True,) * seeds + (False,) * (1 + count), (True,) * at)

        def jvp(*a: torch.Tensor) -> Tensors:
            tangents, mark, xs = a[:at], a[at], a[at + 1 :]
            return along(*tangents, mark, *self._ones(self.outs, xs), mark, *xs)  # type: ignore[no-any-return] # tensors

        return jvp

    def vjp_of(self, ins: Mask, outs: Mask) -> Callable[..., Any]:
        """Return the function of (*cotangents, mark, *tangents, mark, *xs) for the gradients of `ins`."""
        count, at = sum(outs), sum(self.ins)
        chosen, moving = ins[:at], ins[at + 1 :]
        pull = self._pull(outs)
        again = self._differentiate(pull, count, moving)

        def vjp(*a: torch.Tensor) -> Tensors:
            cotangents, (mark, *tangents), xs = a[:count], a[count : count + at + 1], a[count + at + 2 :]
            seeds = (*cotangents, mark, *xs)
            made = select(chosen, pull.fn(*seeds)) if any(chosen) else []
            return [*made, *again.fn(*tangents, mark, *seeds)] if any(moving) else made

        return vjp

    def jvp_of(self, ins: Mask, outs: Mask) -> Callable[..., Any]:
        """Return the function of (*tangents of `ins`, mark, *tangents, mark, *xs) for those of `outs`."""
        count, at = sum(ins), sum(self.ins)
        chosen, moving = ins[:at], ins[at + 1 :]
        kept, seeds = _restrict(self.outs, outs), sum(outs)
        tangent = self.rule.jvp_of(_restrict(self.ins, chosen), kept)
        again = self._differentiate(self._pull(outs), seeds, moving)
        # `again` is linear in the cotangents, so that its gradient with respect to them is the tangent.
        by_seeds = (False,) * (at + 1) + (True,) * seeds + (False,) * (1 + len(moving))
        along = again.vjp_of(by_seeds, (True,) * sum(moving))

        def jvp(*a: torch.Tensor) -> Tensors:
            news, (mark, *tangents), xs = a[:count], a[count : count + at + 1], a[count + at + 2 :]
            of_tangents, of_xs = news[: sum(chosen)], news[sum(chosen) :]
            made = tangent(*of_tangents, mark, *xs) if of_tangents else []
            if not of_xs:
                return made
            more = along(*of_xs, mark, *tangents, mark, *self._ones(kept, xs), mark, *xs)
            return [y + z for y, z in zip(made, more, strict=True)] if made else more

        return jvp

    def _ones(self, outs: Mask, xs: Tensors) -> Tensors:
        """Return cotangents of the outputs in the mask `outs`. Zeros would hide that a graph is cut."""
        return [torch.ones_like(y) for y in select(outs, self.rule.fn(*xs))]

    def _pull(self, outs: Mask) -> TracedFunction:
        """Return the rule of (*cotangents, mark, *xs) for the gradients of the function."""
        return self.rule.derive("vjp", self.ins, _restrict(self.outs, outs), ARRAY)  # type: ignore[return-value] # of the same kind

    def _differentiate(self, pull: TracedFunction, count: int, moving: Mask) -> TracedFunction:
        """Return the rule of (*tangents, mark, *cotangents, mark, *xs) for the gradients of gradients."""
        ins = (False,) * (count + 1) + moving
        return pull.derive("vjp", ins, (True,) * sum(self.ins), ARRAY)  # type: ignore[return-value] # of the same kind


def _restrict(mask: Mask, chosen: Sequence[bool]) -> Mask:
    """Return a mask with only those of its items that are chosen."""
    it = iter(chosen)
    return tuple([inside and next(it) for inside in mask])
