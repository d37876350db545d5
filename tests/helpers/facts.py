"""Facts from which plans are made: a library, an array and its memory, without any of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xbridge import Device
from xbridge._core.protocol import ArrayInfo, Gap, MemoryLayout, Unsupported, c_strides
from xbridge._host import memory
from xbridge._plan.steps import Options, Plan
from xbridge.errors import DTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = memory
"""The host, which is a library to the rules."""

CPU, GPU0, SHARDED = Device("cpu"), Device("cuda:0"), Device("sharded")


@dataclass(eq=False)
class Library:
    """A backend of which only the facts are known that rules ask for. It has no arrays."""

    name: str = "lib"
    readonly: bool = True
    """It has read-only arrays."""
    assumes_immutable: bool = False
    autograd: bool = True
    places: tuple[Device, ...] = (CPU,)
    lacks: tuple[str, ...] = ()
    """The dtypes that it does not have."""
    gaps: dict[str, Gap] = field(default_factory=dict)
    strided: bool = True
    """It takes memory of any strides, if that is aligned and in native byte order."""
    exchanges: bool = False
    """It exports and imports device memory."""
    host_casts: frozenset[tuple[str, str]] = frozenset()
    same_casts: bool = True
    """Its casts give NumPy's numbers."""
    grad_enabled: bool = True
    ordered: bool = False
    """Its arrays show the order of their elements in memory."""
    streams_from: int | None = None
    """The bytes from which on it moves arrays to a device piece by piece."""
    lost: str = ""
    """Why it cannot read its arrays."""

    unreadable: Callable[[MemoryLayout], Unsupported | None] | None = field(init=False, default=None)
    not_sharing: Callable[[], str] | None = None
    is_leaf: Callable[[MemoryLayout], bool] | None = None

    def __post_init__(self) -> None:
        """Have the optional functions of a backend, or None in place of them."""
        self.host_only = self.places == (CPU,)
        self.array_types: tuple[type, ...] = ()
        self.to_dlpack = self.from_dlpack = self.exchanges or None
        self.as_c_order = self.ordered or None
        if self.lost:
            self.unreadable = lambda _: Unsupported(DTypeError, self.lost, "another array")

    @property
    def transfers(self) -> Library:
        """Return the facts, which tell what is moved piece by piece."""
        return self

    def streams_to_device(self, nbytes: int, device: Device) -> bool:
        return self.streams_from is not None and nbytes >= self.streams_from

    def memory_layout(self, x: MemoryLayout) -> MemoryLayout:
        """Return the argument: an array is known by its memory alone."""
        return x

    def accepts_layout(self, info: ArrayInfo, layout: MemoryLayout) -> bool:
        dense = layout.strides == c_strides(layout.shape, layout.itemsize)
        return info.native_byteorder and layout.aligned and (self.strided or dense)

    def devices(self) -> tuple[Device, ...]:
        return self.places

    def resolve_device(self, asked: Device, near: Device) -> Device:
        return asked

    def unsupported_dtype(self, dtype: str, device: Device) -> Unsupported | None:
        return Unsupported(DTypeError, f"{self.name} has no {dtype}", "x") if dtype in self.lacks else None

    def default_dtype(self, category: str, device: Device) -> str:
        return {"float": "float32", "complex": "complex64", "int": "int64", "bool": "bool"}[category]

    def cast_matches_numpy(self, before: str, after: str, device: Device) -> bool:
        return self.same_casts

    def is_grad_enabled(self) -> bool:
        return self.grad_enabled


def library(name: str = "lib", **facts: Any) -> Any:
    """Return a backend of these facts."""
    return Library(name, **facts)


def array_of(
    dtype: str = "float32",
    device: Device = CPU,
    shape: tuple[int, ...] = (2, 3),
    *,
    requires_grad: bool = False,
    native: bool = True,
    itemsize: int = 4,
    **memory: Any,
) -> tuple[MemoryLayout, ArrayInfo]:
    """Return the memory of an array, and the other facts about it."""
    info = ArrayInfo(dtype, device, shape, requires_grad, native)
    strides = memory.pop("strides", c_strides(shape, itemsize))
    return MemoryLayout(memory.pop("address", 64), shape, strides, itemsize, **memory), info


def steps_of(plan: Plan) -> list[str]:
    """Return each step of a plan as its backend, operation and arguments."""
    return [f"{step.backend} {step.action}" for step in plan.steps]


def options(**words: Any) -> Options:
    """Return options, by default those of a call without any."""
    return Options(**words)
