"""Decide if the steps of a plan for one array are also right for other arrays of its dtype and device.

The cache of calls reuses plans. What may differ between the arrays is the shape, the strides, the
address and the values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge._core.protocol import HostArray
    from xbridge._plan.steps import Plan, Step

_BY_FLAGS = frozenset(("asked", "byte_order", "mutable", "read_only", "requires_grad"))
"""Reasons for a copy that depend on no more than the call, and the dtype and flags of NumPy's view."""


def suit_any_view(steps: Sequence[Step], host: HostArray, plan: Plan) -> bool:
    """Return True if the steps are right for any host array of the same dtype and flags."""
    options, copying = plan.conversion.options, next((step for step in steps if step.copy_reason), None)
    if copying is None or copying.module is plan.conversion.target:
        # `fast_from_numpy` itself copies what cannot be shared. With `copy=False` it is used only if the
        # flags alone decide that, as they do for a dense array.
        return host.flags.forc or options.copy is not False
    if copying.op in ("astype", "to_device", "materialize"):  # these make new memory of any strides
        return True
    if copying.copy_reason and copying.copy_reason.kind in _BY_FLAGS:
        return True
    if options.copy is True and all(step.op != "astype" for step in steps):
        return True
    # The flags of a dense array tell its strides, except those of axes of one item, which may be anything.
    return host.flags.forc and all(n > 1 for n in host.shape)
