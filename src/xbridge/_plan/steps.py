"""A plan: what was asked, the steps that do it, and what comes of it.

Each step is one verb of one room: the source's, the target's or the host's. The plan that `explain` shows is
the plan that runs. To run it takes the steps alone, so what they cost and what comes of them is worked out
for whoever asks, from the same facts.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from xbridge._core.dtypes import DTYPES, category, holds_every, is_inexact

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, ArrayInfo, Backend, MemoryLayout
    from xbridge._plan.reasons import CopyReason
    from xbridge.errors import XBridgeError


Op: TypeAlias = Literal[
    "detach",
    "materialize",
    "materialize_many",
    "check_cast",
    "astype",
    "copy",
    "to_device",
    "to_device_many",
    "stream_to_device",
    "stack",
    "to_numpy",
    "from_numpy",
    "to_dlpack",
    "from_dlpack",
    "as_readonly",
    "as_writable",
    "require_grad",
]
"""What a step does: the name of a function of the backend, or of `_host`, that runs it."""


class Options(NamedTuple):
    """What the caller asked, checked and in canonical words."""

    device: Device | None = None
    dtype: str | None = None
    copy: bool | None = None
    grad: str | None = None
    requires_grad: bool = False
    check_loss: bool = False
    """Whether no value may be lost, though the dtype was named."""
    compiled: bool = False
    """Whether a compiler will handle the result, which makes read-only arrays writable."""
    unsafe: bool = False
    """Whether memory is to be shared that the contract would copy."""


class Step(NamedTuple):
    """One verb of one room: the source's, the target's, or the host's."""

    module: Backend | ModuleType
    op: Op
    args: tuple[object, ...] = ()
    copy_reason: CopyReason | None = None
    """Why it makes new memory; None if it does not."""
    nbytes: int | None = None
    """Of new memory; None where nobody has asked, or the library alone knows."""

    @property
    def backend(self) -> str:
        """Whose operation it is; what is done in host memory for all libraries is NumPy's."""
        return self.module.name

    @property
    def action(self) -> str:
        """What is done, with its arguments."""
        return " ".join(map(str, (self.op, *self.args)))

    @property
    def reason(self) -> str:
        """Why it makes new memory, or what it is for."""
        return self.copy_reason.message if self.copy_reason else _PURPOSES[self.op]


_PURPOSES: dict[Op, str] = {
    "detach": "its history stays behind",
    "check_cast": "a value that does not fit is an error",
    "to_numpy": "a view of its memory",
    "from_numpy": "an array over that memory",
    "to_dlpack": "its memory is shown where it is",
    "from_dlpack": "an array over that memory",
    "as_readonly": "nobody may write to the source through it",
    "as_writable": "the new memory is nobody else's",
    "require_grad": "a new history begins",
}


class ArrayEndpoint(NamedTuple):
    """The array at one end of a conversion, in facts."""

    backend: str
    dtype: str
    device: Device
    shape: tuple[int, ...]
    nbytes: int | None
    """Of its elements; None where the library alone knows."""
    writable: bool | None
    """Whether it may be written; None where it has no memory to ask about."""
    requires_grad: bool
    """Whether autograd tracks it."""


class Conversion(NamedTuple):
    """Where an array comes from and where it goes."""

    source: Backend
    target: Backend
    info: ArrayInfo
    options: Options
    dtype: str
    device: Device

    def asked(self) -> str:
        """The conversion in words, for errors."""
        return in_words(self.source, self.info, self.target)


class Plan(NamedTuple):
    """What a conversion does to an array, in order, and what comes of it: facts, and never the array.

    `xbridge.explain` gives one, and what it gives is what would run. Print it, or read it.

    Attributes
    ----------
    source, target : Endpoint
        The array at each end: `backend`, `dtype`, `device`, `shape`, `nbytes`, `writable`,
        `requires_grad`. `target` is None if the conversion is refused.
    steps : tuple of Step
        What is done, in order: `backend`, `op`, `args`, `nbytes`, `reason`. No step at all means that
        the result is the source itself.
    shares_memory, exact, cuts_graph : bool
        Whether the result looks at the source's memory, whether every value of such a source is kept, and
        whether the source's history ends.
    checks : tuple of Step
        The steps that look at values, and may still raise.
    error : XBridgeError or None
        What the conversion would raise; then nothing else comes of it.

    Examples
    --------
    >>> import numpy as np
    >>> from xbridge import explain
    >>> plan = explain(np.arange(3), "numpy", dtype="float32")
    >>> plan.shares_memory, plan.exact, [(step.op, step.nbytes) for step in plan.steps]
    (False, False, [('astype', 12)])
    """

    conversion: Conversion
    steps: tuple[Step, ...]
    layout: MemoryLayout | None = None
    """How the source lies in memory; None where it does not, or nobody has asked."""
    grad_enabled: bool = True
    """Whether the target's operations recorded history when somebody asked."""
    error: XBridgeError | None = None

    @property
    def source(self) -> ArrayEndpoint:
        """The array that is given."""
        info, layout = self.conversion.info, self.layout
        nbytes = layout and _size(info.shape, 8 * layout.itemsize)
        writable = layout and layout.writable
        return ArrayEndpoint(self.conversion.source.name, *info[:3], nbytes, writable, info.requires_grad)

    @property
    def target(self) -> ArrayEndpoint | None:
        """The array that comes of it; None if the conversion is refused."""
        if self.error:
            return None
        conversion, given = self.conversion, self.source
        nbytes = nbytes_of(given.shape, conversion.dtype) if given.nbytes is not None else None
        nbytes = given.nbytes if conversion.dtype == given.dtype else nbytes
        place = (conversion.dtype, conversion.device, given.shape)
        return ArrayEndpoint(conversion.target.name, *place, nbytes, self.writable, self.requires_grad)

    @property
    def copies(self) -> bool:
        """Whether a step makes new memory."""
        return any(step.copy_reason for step in self.steps)

    @property
    def shares_memory(self) -> bool:
        """Whether both look at the same bytes; an empty array has none, and neither has a promise."""
        nowhere = self.layout is not None and self.layout.is_unallocated()
        return not (self.error or self.copies or nowhere)

    @property
    def writable(self) -> bool | None:
        """Whether the result may be written, where its library writes at all."""
        backend = self.conversion.target
        if self.error or backend.assumes_immutable or "as_readonly" in self._ops():
            return False
        return True if self.copies or not backend.readonly else self.source.writable

    @property
    def exact(self) -> bool:
        """Whether every value is kept, or else the conversion raises."""
        before, after = self.conversion.info.dtype, self.conversion.dtype
        checked = bool(self.checks) and category(before) == "int"
        return not self.error and (checked or holds_every(before, after))

    @property
    def requires_grad(self) -> bool:
        """Whether autograd tracks the result."""
        return not self.error and ("require_grad" in self._ops() or self._keeps_history())

    @property
    def cuts_graph(self) -> bool:
        """Whether the source has a history that ends."""
        return self.conversion.info.requires_grad and not self._keeps_history() and not self.error

    @property
    def checks(self) -> tuple[Step, ...]:
        """The steps that look at values, and may still raise."""
        return tuple(step for step in self.steps if step.op == "check_cast")

    def _ops(self) -> list[Op]:
        return [step.op for step in self.steps]

    def _keeps_history(self) -> bool:
        conversion = self.conversion
        if (
            conversion.source is not conversion.target
            or not conversion.info.requires_grad
            or "detach" in self._ops()
        ):
            return False
        return not self.copies or (self.grad_enabled and is_inexact(conversion.dtype))

    def with_sizes(self, x: Array) -> Plan:
        """The same plan with what its readers want to know besides. Reads no element of `x`."""
        weighed = self.steps if self.conversion.source.unsupported(x, leaving=True) else tuple(_weighed(self))
        return self._replace(steps=weighed, grad_enabled=self.conversion.target.is_grad_enabled())

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain words and numbers, for JSON."""
        from xbridge._plan.report import as_dict  # noqa: PLC0415 -- for readers alone

        return as_dict(self)

    def __repr__(self) -> str:
        """In one line."""
        from xbridge._plan.report import line  # noqa: PLC0415 -- for readers alone

        return f"<Plan: {line(self)}>"

    def __str__(self) -> str:
        """In a few aligned lines."""
        from xbridge._plan.report import text  # noqa: PLC0415 -- for readers alone

        return text(self)

    def __rich_console__(self, console: object, options: object) -> Iterator[str]:
        """The same lines, which rich colours; a bracket is nobody's markup."""
        yield str(self).replace("[", r"\[")

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        from xbridge._plan.report import html  # noqa: PLC0415 -- for readers alone

        return html(self)


def _weighed(plan: Plan) -> Iterator[Step]:
    """The steps with their bytes."""
    dtype = plan.conversion.info.dtype
    for step in plan.steps:
        if step.op == "astype":
            dtype = str(step.args[0])
        elif step.op == "stream_to_device":
            dtype = str(*step.args[1:] or (dtype,))
        yield step._replace(nbytes=nbytes_of(plan.conversion.info.shape, dtype) if step.copy_reason else 0)


def nbytes_of(shape: tuple[int, ...], dtype: str) -> int | None:
    """Of a dense array; None of a dtype of the library's own, or while the shape is not known."""
    return _size(shape, DTYPES[dtype].bits) if dtype in DTYPES else None


def is_known(shape: tuple[int, ...]) -> bool:
    """Whether the length of every axis is known before the array is computed."""
    return not any(isinstance(n, float) for n in shape)


def _size(shape: tuple[int, ...], bits: int) -> int | None:
    return prod(shape) * bits // 8 if is_known(shape) else None


def in_words(source: Backend, info: ArrayInfo, target: Backend) -> str:
    """What was given and what was asked, as errors begin."""
    given = f"{source.name} {info.dtype} array of shape {info.shape} on {info.device}"
    return f"convert a {given} to {target.name}"
