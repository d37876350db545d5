"""Backend: the facts and verbs that every backend module has. Read this first.

A backend is a module, not a class: its library is imported plainly at its top, its verbs are functions in
the order below, and the type checker and a test hold it to this page. The core asks; it never guesses.

- *Facts* are constants. They generate the sharing rules and the tables in the docs.
- *Look* verbs touch no data, and answer for arrays that cannot be converted too.
- *Hot* verbs convert the plain case in one step. In doubt they return None, and never raise.
- *Steps* are what plans are made of. Each does one thing or raises.
- *Optional* verbs (`_extras.py`) take many arrays at once, or know more of a device or of dtypes.
"""

# pyright: reportReturnType=false
# The methods of a protocol are their docstrings.

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import numpy as np

    from xbridge._core.devices import Device
    from xbridge.errors import XBridgeError

HostArray: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
"""Host memory, in the form in which everybody meets."""

Array: TypeAlias = Any
"""An array of some backend. What it is only its own module knows."""


class Exporter(Protocol):
    """What shows memory by DLPack. Who looks at it says on which stream."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """The type and the number of the device."""

    def __dlpack__(self, *, stream: int | None = None, **options: object) -> object:
        """A capsule, whose memory is ready for the work that the stream is given next."""


class ArrayInfo(NamedTuple):
    """What a conversion within one library needs to know. Reads no pointer, so it can be traced."""

    dtype: str
    """Canonical name, or the library's own word where there is none."""
    device: Device
    shape: tuple[int, ...]
    """With NaN for the length of an axis that shows when it is computed."""
    requires_grad: bool = False
    """Whether autograd tracks it."""
    native_byteorder: bool = True
    """Whether its bytes are in this machine's order."""


class MemoryLayout(NamedTuple):
    """How an array that may be read lies in memory."""

    address: int
    """Of the first element, in bytes; 0 if there is no memory before it is settled."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes."""
    itemsize: int
    writable: bool = True
    aligned: bool = True
    materialized: bool = True
    """False while an operation is still pending on the bytes, as with a conjugate bit."""

    @classmethod
    def unallocated(cls, shape: tuple[int, ...], itemsize: int, *, writable: bool = True) -> MemoryLayout:
        """Of an array that has no memory before it is settled, and lies row by row then."""
        rows = tuple(accumulate((itemsize, *shape[:0:-1]), mul))[: len(shape)]
        return cls(0, shape, rows[::-1], itemsize, writable=writable, materialized=False)

    def is_unallocated(self) -> bool:
        """Whether it has no byte in memory: it is empty, or still to be computed."""
        return 0 in self.shape or not self.address

    def span(self) -> tuple[int, int]:
        """The bytes from the lowest to behind the highest, relative to the first element."""
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = sum(r for r in reach if r < 0)
        return low, sum(r for r in reach if r > 0) + self.itemsize

    def may_overlap_itself(self) -> bool:
        """Whether two elements may lie in the same memory; True when in doubt."""
        if 0 in self.shape:
            return False
        behind = self.itemsize
        axes = zip(self.shape, self.strides, strict=True)
        for stride, n in sorted((abs(s), n) for n, s in axes if n > 1):
            if stride < behind:
                return True
            behind += (n - 1) * stride
        return False


class Unsupported(NamedTuple):
    """Why an array cannot be read, and what to type instead."""

    error: type[XBridgeError]
    reason: str
    hint: str


class Backend(Protocol):
    """What a backend module offers."""

    # -- facts -----------------------------------------------------------------------------------
    @property
    def name(self) -> str:
        """The name that users type."""

    @property
    def plain(self) -> tuple[type, ...]:
        """Exact types that the hot path may take."""

    @property
    def scalars(self) -> tuple[type, ...]:
        """Types that it owns and that stand for a 0-d array of the host."""

    @property
    def readonly(self) -> bool:
        """Its arrays can be read-only."""

    @property
    def immutable(self) -> bool:
        """It reads shared memory later than the call, so only immutable sources are shared."""

    @property
    def autograd(self) -> bool:
        """Its arrays carry history."""

    @property
    def host_only(self) -> bool:
        """Its arrays live in host memory and nowhere else."""

    @property
    def host_casts(self) -> frozenset[tuple[str, str]]:
        """Casts for which the host gives the same bits as any device, and sooner."""

    @property
    def gaps(self) -> Mapping[str, str]:
        """A promise that it cannot keep -> why; the reason begins with never, notyet or notimpl."""

    @property
    def samples(self) -> str:
        """The import path of what the test kit knows of the library; empty if it knows nothing special."""

    # -- look ------------------------------------------------------------------------------------
    def owns(self, cls: type, /) -> bool:
        """Whether instances of the class are its arrays or scalars."""

    def array_info(self, x: Array, /) -> ArrayInfo:
        """The facts of any array it owns, convertible or not."""

    def unsupported(self, x: Array, /, *, leaving: bool) -> Unsupported | None:
        """Why `x` cannot be converted, within the library or on the way out of it."""

    def memory_layout(self, x: Array, /) -> MemoryLayout:
        """How an array that is not refused lies in memory."""

    def dtype_name(self, dtype: object, /) -> str | None:
        """The name of one of its dtype objects; None for anything else."""

    def unsupported_dtype(self, dtype: str, device: Device, /) -> Unsupported | None:
        """Why it cannot have arrays of that dtype there; None if it can."""

    def default_dtype(self, category: str, device: Device, /) -> str:
        """The dtype that Python numbers of a category become."""

    def device_name(self, device: object, /) -> Device | None:
        """The name of one of its device objects; None for anything else."""

    def resolve_device(self, device: Device, near: Device, /) -> Device:
        """One existing device for a name that may leave the index open or say `gpu`."""

    def devices(self) -> tuple[Device, ...]:
        """The devices that are here now."""

    def namespace(self, x: Array, /) -> ModuleType:
        """The array API namespace of `x`."""

    def is_tracing(self) -> bool:
        """Whether a compiler of the library is tracing the caller now."""

    def untraced(self, fn: Callable[..., Array], /) -> Callable[..., Array]:
        """`fn`, run outside the modes that would change what it makes, such as tracing."""

    def is_grad_enabled(self) -> bool:
        """Whether operations record history now."""

    # -- hot -------------------------------------------------------------------------------------
    def fast_to_numpy(self, x: Array, /) -> HostArray | None:
        """The host's view of a plain array, as the contract wants it."""

    def fast_from_numpy(self, host: HostArray, /) -> Array | None:
        """An array over a plain host array's memory, as the contract wants it."""

    # -- steps -----------------------------------------------------------------------------------
    def detach(self, x: Array, /) -> Array:
        """The same memory without history; read-only where the library has such arrays."""

    def require_grad(self, x: Array, /) -> Array:
        """A new leaf over the same memory."""

    def materialize(self, x: Array, /) -> Array:
        """Do what is pending on the bytes; new memory."""

    def check_cast(self, x: Array, dtype: str, /) -> Array:
        """`x`, after making sure that no value is lost in a cast to the dtype."""

    def astype(self, x: Array, dtype: str, /) -> Array:
        """The library's own cast; new memory."""

    def copy(self, x: Array, /) -> Array:
        """New memory, dense, in the same axis order."""

    def to_device(self, x: Array, device: Device, /) -> Array:
        """New memory on another device, complete for whoever reads it next."""

    def stack(self, arrays: list[Array], shape: tuple[int, ...], /) -> Array:
        """Arrays of one dtype, shape and device side by side: shape + the arrays' shape."""

    def accepts_layout(self, info: ArrayInfo, layout: MemoryLayout, /) -> bool:
        """Whether `from_host` can express host memory that lies like this."""

    def to_numpy(self, x: Array, /) -> HostArray:
        """A view of an array in host memory: no copy, no history."""

    def from_numpy(self, host: HostArray, /) -> Array:
        """An array over the same memory, whether or not that may be written.

        Where `sharing` is a gap and the library is not `immutable`: of the same values, in new memory. A
        library that has no arrays in host memory (gap `host`) lets the host's array stand for its own: this
        and `to_host` return what they are given, and `move` takes and gives it.
        """

    def to_dlpack(self, x: Array, /) -> Exporter:
        """What shows the memory of an array on its device by DLPack, whatever device is current."""

    def from_dlpack(self, shown: Exporter, /) -> Array:
        """An array over device memory that somebody shows, in the order of the current stream there."""


FACTS: dict[str, type] = {
    "name": str,
    "plain": tuple,
    "scalars": tuple,
    "readonly": bool,
    "immutable": bool,
    "autograd": bool,
    "host_only": bool,
    "host_casts": frozenset,
    "gaps": Mapping,
    "samples": str,
}

VERBS = (
    *(
        "owns",
        "array_info",
        "unsupported",
        "memory_layout",
        "dtype_name",
        "unsupported_dtype",
        "default_dtype",
    ),
    *("device_name", "resolve_device", "devices", "namespace", "is_tracing", "untraced", "is_grad_enabled"),
    *(
        "fast_to_numpy",
        "fast_from_numpy",
        "detach",
        "require_grad",
        "materialize",
        "check_cast",
        "astype",
        "copy",
        "to_device",
        "stack",
        "accepts_layout",
    ),
    *("to_numpy", "from_numpy", "to_dlpack", "from_dlpack"),
)
