"""Ask what a conversion would do. Nothing is done, and no element is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbridge._core.entry_points import entry_point
from xbridge._engine import verbs

if TYPE_CHECKING:
    from types import ModuleType

    from xbridge._api import Grad
    from xbridge._core.protocol import Array
    from xbridge._plan.steps import Plan


@entry_point
def explain(
    x: Array,
    /,
    backend: str | ModuleType,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    requires_grad: bool | None = None,
) -> Plan:
    """Say what a conversion would do to an array, without doing it.

    Parameters
    ----------
    x : array
        As for `to_backend`. None of its elements is read.
    backend : str or module
        The target library.
    device, dtype, copy, grad, requires_grad
        As for `to_backend` and `asarray`.

    Returns
    -------
    Plan
        The plan that the conversion would run, a frozen value: the facts of both ends, the steps in
        order, each with its bytes and its reason, and the verdict. A conversion that would be refused has
        a plan as well, and its `error` is what would be raised.

    Raises
    ------
    UnknownBackendError, MissingLibraryError, OptionError
        There is no such target or option, so there is nothing to plan.
    UnsupportedArrayError
        `x` is no array, or one that nobody knows before it is read: an exporter that would copy or
        compute to show itself.

    Examples
    --------
    >>> import numpy as np
    >>> plan = explain(np.arange(6.0)[::-1], "numpy", dtype="float32")
    >>> print(plan)
    from  numpy float64 (6,) on cpu  48 bytes  writable
    1     numpy cast float32         24 bytes  float64 becomes float32
    to    numpy float32 (6,) on cpu  24 bytes  writable
    so    new memory, writable; values may change
    >>> plan.steps[0].nbytes, plan.shares_memory, plan.error
    (24, False, None)
    """
    asked = {"device": device, "dtype": dtype, "copy": copy, "grad": grad}
    return verbs.explain(x, backend, requires_grad=requires_grad, **asked)
