"""Device: one grammar, `kind[:index]`, for every library's places.

A device is a string, so `device_of(x) == "cuda:0"` needs no import and prints as itself. Kinds are the
words people already use (`cpu cuda mps xpu tpu`); a library's own word (`device1`) is a kind as well.
`gpu` stands for the target's accelerator and never comes back as an answer.
"""

from __future__ import annotations

from xbridge._core.dynamo import constant
from xbridge.errors import DeviceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self


class Device(str):
    """A place where arrays live: a string with a kind and an index.

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

    __slots__ = ()

    def __new__(cls, name: str) -> Self:
        """Check the grammar once, where the device is made."""
        kind, colon, index = name.partition(":") if isinstance(name, str) else ("", "", "")
        is_number = index.isascii() and index.isdecimal() and str(int(index)) == index
        if not kind or kind != kind.strip() or bool(colon) != is_number:
            raise DeviceError.build(
                f"read device {name!r}", "a device is a kind or kind:index", "device='cpu'"
            )
        return super().__new__(cls, "cpu" if name == "cpu:0" else name)

    @property
    def kind(self) -> str:
        """The word before the colon."""
        return self.partition(":")[0]

    @property
    def index(self) -> int | None:  # type: ignore[override] # a device has no substrings to look for
        """The number after the colon; None where there is none."""
        index = self.partition(":")[2]
        return int(index) if index else None


class _Made:
    """Every device that was asked for, as an attribute: a compiler can follow that."""


def device_named(name: str) -> Device:
    """`Device(name)`, where a compiler may be tracing."""
    made: Device = getattr(_Made, _make(name))
    return made


@constant
def _make(name: str) -> str:
    device = Device(name)
    attribute = f"device {device}"
    setattr(_Made, attribute, device)
    return attribute


CPU = device_named("cpu")
GPU = device_named("gpu")
"""The target's accelerator, whatever its kind; no array is there."""
SHARDED = device_named("sharded")
"""Where an array is that lies on several devices at once."""
