"""Which steps of a plan are those of a plan for other arrays too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge._core.protocol import HostArray
    from xbridge._plan.steps import Plan, Step

_BY_FLAGS = frozenset(("asked", "byte_order", "mutable", "read_only", "requires_grad"))
"""Reasons for a copy that the dtype and the flags of the host's view show, or the call itself."""


def suit_any_layout(steps: Sequence[Step], plan: Plan) -> bool:
    """Return True if the steps would be the same for any strides: they begin with a cast, move or copy."""
    copying = next((step for step in steps if step.copy_reason), None)
    if copying is None or copying.module is plan.conversion.target:
        return False
    if copying.op in ("astype", "to_device", "materialize"):
        return True
    return plan.conversion.options.copy is True and all(step.op != "astype" for step in steps)


def suit_any_view(steps: Sequence[Step], host: HostArray, plan: Plan) -> bool:
    """Return True if the steps would be the same for any host array of the same dtype and flags."""
    if suit_any_layout(steps, plan):
        return True
    copying = next((step for step in steps if step.copy_reason), None)
    if copying is None or copying.module is plan.conversion.target:
        # `fast_from_numpy` copies what cannot be shared. It tells that by the flags of a dense array.
        return host.flags.forc or plan.conversion.options.copy is not False
    if copying.copy_reason and copying.copy_reason.kind in _BY_FLAGS:
        return True
    # Flags do not show the stride of an axis of one item, which may be any.
    return host.flags.forc and all(n > 1 for n in host.shape)


def holds_for_others(plan: Plan) -> bool:
    """Return False if other arrays may be refused: an empty one may be copied in spite of `copy=False`."""
    return not (plan.conversion.options.copy is False and plan.copies)
