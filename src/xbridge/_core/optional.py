"""Extras: what a backend may offer besides. Who asks for one does without, where there is none."""

# pyright: reportReturnType=false
# The methods of a protocol are their docstrings.

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from xbridge._core.protocol import Backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, HostArray


class Extras(Backend, Protocol):
    """A backend with every optional verb."""

    def fast_from_numpy_many(self, hosts: list[HostArray], /) -> list[Array] | None:
        """`adopt` for each of these arrays; None when in doubt about one."""

    def stack_many(self, xs: list[Array], /) -> Array | None:
        """`stack` in one row, for plain arrays that may be unlike; None if they are, or in doubt."""

    def to_device_many(self, xs: list[Array], device: Device, /) -> list[Array]:
        """`move` for many small arrays at once, whose new memory may be one piece."""

    def materialize_many(self, xs: list[Array], /) -> list[Array]:
        """`settle` for many at once, whatever they are made of being made once."""

    def streams_to_device(self, nbytes: int, device: Device, /) -> bool:
        """Whether it would `send` an array that has so many bytes there."""

    def stream_to_device(self, host: HostArray, device: Device, dtype: str | None = None, /) -> Array:
        """The host's cast, or else its copy, and `move` in one, piece by piece: no whole copy lies between.

        The result lies in the order of axes that the host would have given it.
        """

    def agrees(self, dtype: str, other: str, device: Device, /) -> bool:
        """Whether its cast there gives the host's numbers, sooner or not; without it, `host_casts` tell."""

    def is_leaf(self, x: Array, /) -> bool:
        """Whether the history of an array that has one begins with it."""

    def promote(self, dtypes: list[str], numbers: list[complex], /) -> str | None:
        """The dtype that it gives arrays of these dtypes beside Python numbers; None if it has no rule."""

    def aside(
        self, fn: Callable[[list[object]], list[object]], device: Device, /
    ) -> Callable[[list[object]], list[object]]:
        """`fn` for another thread, in the modes of this one: complete on return, and for this one to use.

        It reads what lies there after what this thread has asked for so far, and nothing later. They nest.
        """

    def here(self) -> Callable[[], None]:
        """What another thread calls once, to have for its life the modes, device and queues of this one."""

    def is_text(self, x: Array, /) -> bool:
        """Whether the items of an array are strings; without it, `x.dtype.kind` tells."""


OPTIONAL = (
    *(
        "fast_from_numpy_many",
        "stack_many",
        "to_device_many",
        "materialize_many",
        "streams_to_device",
        "stream_to_device",
        "agrees",
        "is_leaf",
    ),
    *("promote", "aside", "here", "is_text"),
)
