"""Names of devices, in one grammar for all libraries: `kind[:index]`.

A device is a string, so that `device_of(x) == "cuda:0"` needs no import. Kinds are the usual words (`cpu`,
`cuda`, `mps`, `xpu`, `tpu`) and a library's own ones. In a request, `gpu` stands for the accelerator of the
target; no function returns it.
"""

from __future__ import annotations

from xbridge._core.tracing import constant_in_traces
from xbridge.errors import DeviceError, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self


CUDA, ROCM, CUDA_MANAGED = 2, 10, 13
"""DLPack's numbers of device types."""

_DIGITS = 9


class Device(str):
    """A device that holds arrays: a string with a kind and an index.

    Parameters
    ----------
    name : str
        `kind` or `kind:index`, such as ``"cpu"`` or ``"cuda:1"``; ``"cpu:0"`` is ``"cpu"``.

    Raises
    ------
    DeviceError
        `name` is not of that form.

    Examples
    --------
    >>> Device("cuda:1").kind, Device("cuda:1").index
    ('cuda', 1)
    >>> Device("cpu") == "cpu", Device("cpu").index
    (True, None)
    """

    __slots__ = ("_index", "_kind", "_word")

    _index: int | None
    _kind: str
    _word: str

    def __new__(cls, name: str) -> Self:
        """Check the grammar once, when the device is made."""
        given = name
        name = str.__str__(name) if isinstance(name, str) else ""  # `str(name)` of an enum has its class
        kind, colon, index = name.partition(":")
        is_number = index.isascii() and index.isdecimal() and (index[0] != "0" or index == "0")
        reason = "" if len(index) <= _DIGITS else f"an index has at most {_DIGITS} digits"
        if not kind.isprintable() or kind != kind.strip() or bool(colon) != is_number or not kind:
            reason = "a device is a kind or kind:index"
        if reason:
            raise DeviceError.build(f"read device {shown(name or given)}", reason, "device='cpu'")
        if name == "cpu:0":
            colon = index = ""
        device = super().__new__(cls, kind + colon + index)
        device._word, device._kind, device._index = kind + colon + index, kind, int(index) if colon else None
        return device

    # A compiler traces these methods as a comparison of strings. Without them, some compare the identity of
    # the objects.
    def __eq__(self, other: object) -> bool:
        return self._word == (other._word if isinstance(other, Device) else other)

    def __ne__(self, other: object) -> bool:
        return self._word != (other._word if isinstance(other, Device) else other)

    def __hash__(self) -> int:
        return hash(self._word)

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (self._word,)

    @property
    def kind(self) -> str:
        """The word before the colon."""
        return self._kind

    @property
    def index(self) -> int | None:  # type: ignore[override] # a device has no substrings to look for
        """The number after the colon; None if there is none."""
        return self._index


def is_of_kind(device: Device, asked: Device) -> bool:
    """Return True if a device is the one that was asked for, or of the kind that was, without an index."""
    if asked.index is not None:
        return device == asked
    return device.kind != "cpu" if asked == "gpu" else device.kind == asked.kind


def absent_device_error(
    library: str, device: Device, present: tuple[Device, ...], action: str = ""
) -> DeviceError:
    """Return the error for a device that a library does not have on this machine."""
    reason = f"{library} has no device {device} here, only {', '.join(present)}"
    action = action or f"put an array of {library} on {device!r}"
    near = next((one for one in present if one.kind == device.kind.lower()), present[0])
    return DeviceError.build(action, reason, f"device={near!r}")


class _KnownDevices:
    """The devices that were requested so far, as attributes, which a compiler can follow."""


def device_named(name: str) -> Device:
    """Return `Device(name)`, also in traced code, where a compiler cannot make an object of this class."""
    device: Device = getattr(_KnownDevices, _make(name))
    return device


@constant_in_traces
def _make(name: str) -> str:
    device = Device(name)
    attribute = f"device {device}"
    setattr(_KnownDevices, attribute, device)
    return attribute


CPU = device_named("cpu")
GPU = device_named("gpu")
"""The target's accelerator of any kind. No array reports this device."""
SHARDED = device_named("sharded")
"""The kind of a name for several devices, on which one array is stored, and the first such name."""
