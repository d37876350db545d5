"""The plan of a conversion as data: the options, the steps and the result.

Each step is one function of one backend: the source's, the target's or the host's. The plan that `explain`
shows is the one that runs. To run it takes only the steps; sizes and facts about the result are derived from
them for readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias

from xbridge._core.devices import Device
from xbridge._core.dtypes import DTYPES, category, holds_every, is_inexact
from xbridge._core.protocol import Array, ArrayInfo, Backend, MemoryLayout
from xbridge._core.text import preformatted, table
from xbridge._plan.reasons import CopyReason
from xbridge.errors import XBridgeError, with_article

Op: TypeAlias = Literal[
    "detach",
    "materialize",
    "materialize_many",
    "check_cast",
    "astype",
    "copy",
    "as_c_order",
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
"""The operation of a step: the name of a function of a backend or of `_host`."""


class Options(NamedTuple):
    """The options of a call after they were checked, with canonical names of the device and the dtype.

    The first ones are those of `CallOptions`, in the same order, because they are part of the same keys.
    """

    device: Device | None = None
    dtype: str | None = None
    copy: bool | None = None
    grad: str | None = None
    requires_grad: bool | None = None
    """True for a new leaf, else None."""
    writable: bool | None = None
    """True for a writable result, at the price of a copy if need be; False for a read-only one."""
    order: str | None = None
    """"C" for a result whose elements are in C order in memory; None to keep the layout."""
    check_loss: bool = False
    """True if a lost value is an error although the dtype was named."""
    compiled: bool = False
    """True if a compiler will handle the result. Compilers make read-only arrays writable."""
    unsafe: bool = False
    """True to share memory that the contract would copy."""
    by_dtype: tuple[tuple[str, str], ...] = ()
    """The dtype for arrays of each dtype, if the call maps dtypes; others keep theirs. No plan has it."""


class Step(NamedTuple):
    """One operation of one backend: the source's, the target's or the host's."""

    module: Backend | ModuleType
    op: Op
    args: tuple[object, ...] = ()
    copy_reason: CopyReason | None = None
    """Why the step makes new memory; None if it does not."""
    nbytes: int | None = None
    """Bytes of new memory; None if they are not computed, or only the library knows them."""

    @property
    def backend(self) -> str:
        """The name of the backend; operations in host memory are NumPy's."""
        return str(self.module.name)

    @property
    def action(self) -> str:
        """The operation with its arguments."""
        return " ".join(map(str, (self.op, *self.args)))

    @property
    def reason(self) -> str:
        """Why the step makes new memory, or else its purpose."""
        return self.copy_reason.message if self.copy_reason else _PURPOSES[self.op]

    def __reduce__(self) -> tuple[Callable[..., Step], tuple[object, ...]]:
        """Pickle a module by its name. A backend, which is a module too, pickles itself."""
        module = self.module.__name__ if type(self.module) is ModuleType else self.module
        return _step, (module, *self[1:])


def _step(module: Any, *rest: Any) -> Step:
    """Make a step of its pickled parts."""
    return Step(import_module(module) if isinstance(module, str) else module, *rest)


_PURPOSES: dict[Op, str] = {
    "detach": "its graph stays behind",
    "as_c_order": "a copy, if it is not in C order then",
    "check_cast": "a value that does not fit is an error",
    "to_numpy": "a view of its memory",
    "from_numpy": "an array over that memory",
    "to_dlpack": "exported on its device by DLPack",
    "from_dlpack": "an array over that memory",
    "as_readonly": "nothing can be written through it",
    "as_writable": "no other array uses the new memory",
    "require_grad": "a new graph begins",
}


class ArrayEndpoint(NamedTuple):
    """Facts about the array at one end of a conversion."""

    backend: str
    dtype: str
    device: Device
    shape: tuple[int, ...]
    nbytes: int | None
    """Bytes of the elements; None if only the library knows them."""
    writable: bool | None
    """True if the array may be written; None if it has no memory yet."""
    requires_grad: bool
    """True if autograd tracks the array."""


class Conversion(NamedTuple):
    """The two ends of a conversion and its options."""

    source: Backend
    target: Backend
    info: ArrayInfo
    options: Options
    dtype: str
    device: Device

    def asked(self) -> str:
        """Describe the conversion for errors."""
        return in_words(self.source, self.info, self.target)


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """The steps of a conversion in order, and facts about its result. It does not hold the array.

    `xbridge.explain` returns the plan that the conversion would run. Print it, or read its attributes.

    Attributes
    ----------
    source, target : ArrayEndpoint
        The array at each end: `backend`, `dtype`, `device`, `shape`, `nbytes`, `writable`,
        `requires_grad`. `target` is None if the conversion is refused.
    steps : tuple of Step
        The steps in order: `backend`, `op`, `args`, `nbytes`, `reason`. Without a step, the result is the
        source itself.
    shares_memory, exact, cuts_graph : bool
        True if the result shares the source's memory, if every value is kept, and if the source's graph
        ends.
    checks : tuple of Step
        The steps that read values, and may still raise.
    error : XBridgeError or None
        The error that the conversion would raise. There is no result then.

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
    """The memory of the source; None if the source has none, or if it is not computed."""
    grad_enabled: bool = True
    """True if the target's operations recorded a graph when the sizes were computed."""
    error: XBridgeError | None = None

    @property
    def source(self) -> ArrayEndpoint:
        """The array that is converted."""
        info, layout = self.conversion.info, self.layout
        nbytes = layout and _size(info.shape, layout.itemsize)
        writable = layout and layout.writable
        return ArrayEndpoint(self.conversion.source.name, *info[:3], nbytes, writable, info.requires_grad)

    @property
    def target(self) -> ArrayEndpoint | None:
        """The result; None if the conversion raises an error."""
        if self.error:
            return None
        conversion, given = self.conversion, self.source
        same = given.nbytes is None or conversion.dtype == given.dtype
        nbytes = given.nbytes if same else nbytes_of(given.shape, conversion.dtype)
        place = (conversion.dtype, conversion.device, given.shape)
        return ArrayEndpoint(conversion.target.name, *place, nbytes, self.writable, self.requires_grad)

    @property
    def copies(self) -> bool:
        """True if a step makes new memory."""
        return any(step.copy_reason for step in self.steps)

    @property
    def shares_memory(self) -> bool:
        """True if both use the same bytes. Empty arrays and lazy arrays have none."""
        unallocated = self.layout is not None and self.layout.is_unallocated()
        return not (self.error or self.copies or unallocated)

    @property
    def writable(self) -> bool | None:
        """True if the result may be written, and its library writes arrays."""
        backend = self.conversion.target
        if self.error or backend.assumes_immutable or "as_readonly" in self._ops():
            return False
        return True if self.copies or not backend.readonly else self.source.writable

    @property
    def exact(self) -> bool:
        """True if every value is kept, or else the conversion raises."""
        before, after = self.conversion.info.dtype, self.conversion.dtype
        checked = bool(self.checks) and category(before) == "int"
        return not self.error and (checked or holds_every(before, after))

    @property
    def requires_grad(self) -> bool:
        """True if autograd tracks the result."""
        return not self.error and ("require_grad" in self._ops() or self._keeps_graph())

    @property
    def cuts_graph(self) -> bool:
        """True if the source has a graph that ends."""
        return self.conversion.info.requires_grad and not self._keeps_graph() and not self.error

    @property
    def checks(self) -> tuple[Step, ...]:
        """The steps that read values, and may still raise."""
        return tuple(step for step in self.steps if step.op == "check_cast")

    def _ops(self) -> list[Op]:
        return [step.op for step in self.steps]

    def _keeps_graph(self) -> bool:
        conversion = self.conversion
        within = conversion.source is conversion.target
        if not (within and conversion.info.requires_grad) or "detach" in self._ops():
            return False
        return not self.copies or (self.grad_enabled and is_inexact(conversion.dtype))

    def with_sizes(self, x: Array) -> Plan:
        """Return the plan with sizes, for readers. No element of `x` is read."""
        steps = self.steps if self.conversion.source.unsupported(x, leaving=True) else tuple(_add_sizes(self))
        return replace(self, steps=steps, grad_enabled=self.conversion.target.is_grad_enabled())

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain words and numbers, for JSON."""
        error = self.error
        return {
            "source": _as_dict(self.source),
            "target": self.target and _as_dict(self.target),
            "backend": self.conversion.target.name,
            "steps": [
                {
                    "backend": step.backend,
                    "op": step.op,
                    "args": [*map(str, step.args)],
                    "nbytes": step.nbytes,
                    "reason": step.reason,
                }
                for step in self.steps
            ],
            "shares_memory": self.shares_memory,
            "writable": self.writable,
            "exact": self.exact,
            "cuts_graph": self.cuts_graph,
            "checks": [step.action for step in self.checks],
            "error": error and {"type": type(error).__name__, "message": str(error)},
        }

    def __repr__(self) -> str:
        return f"<Plan: {_description(self.source)} to {self.conversion.target.name}: {self._verdict()}>"

    def __str__(self) -> str:
        return "\n".join([*table([*self._rows()], right=[2]), f"so    {self._verdict()}"])

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    def _verdict(self) -> str:
        if self.error:
            return f"{type(self.error).__name__}: {self.error}"
        facts = ["the array itself"]
        if self.steps:
            memory = "shares memory" if self.shares_memory else "new memory"
            facts = [f"{memory}, {'writable' if self.writable else 'read-only'}"]
        if not self.exact:
            facts.append("values may change")
        if self.conversion.info.requires_grad:
            facts.append("the graph ends here" if self.cuts_graph else "the graph goes on")
        facts += [f"an error if a value does not fit {step.args[0]}" for step in self.checks]
        return "; ".join(facts)

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield a row for each end and each step: its name or number, a description, the bytes and a note."""
        yield "from", *_cells(self.source)
        for number, step in enumerate(self.steps, 1):
            nbytes = _format_bytes(step.nbytes) if step.copy_reason else ""
            yield str(number), f"{step.backend} {step.action}", nbytes, step.reason
        if self.target is None:
            yield "to", self.conversion.target.name, "", "refused"
        else:
            yield "to", *_cells(self.target)


def _add_sizes(plan: Plan) -> Iterator[Step]:
    dtype = plan.conversion.info.dtype
    for step in plan.steps:
        if step.op == "astype":
            dtype = str(step.args[0])
        elif step.op == "stream_to_device":
            dtype = str(*step.args[1:] or (dtype,))
        yield step._replace(nbytes=nbytes_of(plan.conversion.info.shape, dtype) if step.copy_reason else 0)


def nbytes_of(shape: tuple[int, ...], dtype: str) -> int | None:
    """Return the bytes of a dense array; None for a library's own dtype or an unknown shape."""
    return _size(shape, DTYPES[dtype].itemsize) if dtype in DTYPES else None


def _description(end: ArrayEndpoint) -> str:
    return f"{end.backend} {end.dtype} {end.shape} on {end.device}"


def _cells(end: ArrayEndpoint) -> tuple[str, str, str]:
    """Describe an array: what it is, its bytes, and if it may be written and requires grad."""
    state = {True: "writable", False: "read-only", None: "memory unknown"}[end.writable]
    return _description(end), _format_bytes(end.nbytes), state + ", requires grad" * end.requires_grad


def _as_dict(end: ArrayEndpoint) -> dict[str, Any]:
    """Return the facts as types that JSON has. An unknown length, as of a lazy array, is None."""
    shape = [n if isinstance(n, int) else None for n in end.shape]
    return {**end._asdict(), "shape": shape, "device": str(end.device)}


def _format_bytes(number: int | None) -> str:
    return "? bytes" if number is None else f"{number:,} bytes"


def _size(shape: tuple[int, ...], itemsize: int) -> int | None:
    is_known = not any(isinstance(n, float) for n in shape)  # an unknown length is NaN
    return prod(shape) * itemsize if is_known else None


def in_words(source: Backend, info: ArrayInfo, target: Backend) -> str:
    """Describe a conversion by its input and its target."""
    given = f"{with_article(source.name)} {info.dtype} array of shape {info.shape} on {info.device}"
    return f"convert {given} to {target.name}"
