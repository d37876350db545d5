"""Many arrays for a device: small ones go together, one of each dtype is planned, large ones are streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from inside import get_backend
from toylib import CHIP, Placed, make_placed_backend

import xbridge
from xbridge import tree
from xbridge._engine import convert
from xbridge.protocol import Transfers, Unsupported

if TYPE_CHECKING:
    from xbridge import Device
    from xbridge.protocol import HostArray, MemoryLayout

LARGE = 1 << 12
"""Bytes from which on the toy library streams."""


FOREIGN = "its bytes are in foreign order", "native byte order from the start"


class Moves(NamedTuple):
    """What the library was asked for."""

    alone: list[int]
    """Bytes of arrays that moved alone."""
    together: list[int]
    """How many arrays moved together, call by call."""
    streamed: list[tuple[Any, ...]]
    """The number of bytes on the device, and the arguments of the call."""


@pytest.fixture
def moves(own_registry: None) -> Moves:
    """Toys on two devices, registered."""
    seen = Moves([], [], [])

    def to_device(x: Placed, device: Device) -> Placed:
        if -13 in x.data:
            raise RuntimeError("-13 is unlucky")
        seen.alone.append(x.data.nbytes)
        return Placed(x.data.copy(), device)

    class Together(Transfers):
        """Transfers of toys."""

        def to_device_many(self, xs: list[Placed], device: Device, /) -> list[Placed]:
            if any(-13 in x.data for x in xs):
                raise RuntimeError("one of them is unlucky")
            seen.together.append(len(xs))
            return [Placed(x.data.copy(), device) for x in xs]

        def streams_to_device(self, nbytes: int, device: Device, /) -> bool:
            return nbytes >= LARGE and device == CHIP

        def stream_to_device(self, host: HostArray, device: Device, dtype: str | None = None, /) -> Placed:
            made = Placed(np.array(host, dtype or host.dtype.newbyteorder("=")), device)
            seen.streamed.append((made.data.nbytes, device, dtype))
            return made

    def fast_from_numpy(a: HostArray) -> Placed | None:
        return Placed(a.copy()) if a.flags.c_contiguous and a.dtype.isnative else None

    module = make_placed_backend(
        assumes_immutable=False,
        fast_from_numpy=fast_from_numpy,
        host_casts=frozenset({("int32", "int16"), ("int32", "int64")}),
        to_device=to_device,
        transfers=Together(),
    )
    xbridge.register_backend("toylib", module)
    return seen


def there(xs: Any, **options: Any) -> list[Any]:
    made: list[Any] = tree.to_backend(xs, "toylib", device="chip", **options)
    assert all(x.device == CHIP for x in made)
    return [x.data.tolist() for x in made]


def test_to_device_many__moves_small_arrays_together(moves: Moves) -> None:
    """Small arrays move to the device in one transfer."""
    xs = [np.arange(n, n + 3.0) for n in range(4)]
    xs[2:2] = [np.arange(3)]
    assert there(xs) == [x.tolist() for x in xs]
    assert moves == Moves([], [5], [])
    backwards, limit = np.arange(3.0)[::-1], np.zeros(convert.SMALL_NBYTES, np.int8)
    assert there([*xs, backwards, limit, limit + 1])[5:] == [[2, 1, 0], limit.tolist(), (limit + 1).tolist()]
    assert moves.together == [5, 8]


def test_to_device_many__moves_large_arrays_alone(moves: Moves) -> None:
    """An array above the size limit moves on its own."""
    small, large = np.zeros(convert.SMALL_NBYTES, np.int8), np.zeros(convert.SMALL_NBYTES + 1, np.int8)
    small[:2] = large[:2] = 1
    assert there([small, large, small + 1]) == [x.tolist() for x in (small, large, small + 1)]
    assert moves == Moves([large.nbytes], [2], [])


def test_to_device_many__error_names_the_array(moves: Moves) -> None:
    """If the joint transfer fails, the error names the array that cannot move."""
    with pytest.raises(xbridge.DeviceError, match=r"^at tree\[2\]: .*-13 is unlucky"):
        there([np.ones(2), np.ones(3), np.full(2, -13.0), np.ones(2)])
    assert moves.alone == [16, 24]
    large = np.zeros(convert.SMALL_NBYTES + 1, np.int8)  # which is moved alone
    with pytest.raises(xbridge.DeviceError, match=r"^at tree\[2\]: .*-13 is unlucky"):
        there([large, np.ones(2), np.full(2, -13.0)])


def test_to_device_many__falls_back_to_single_moves(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """If only the joint transfer fails, the arrays move one by one."""

    def fails(xs: list[Placed], device: Device) -> list[Placed]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(get_backend("toylib").transfers, "to_device_many", fails)
    assert there([np.ones(2), np.zeros(3)]) == [[1, 1], [0, 0, 0]]
    assert moves == Moves([16, 24], [], [])


@pytest.mark.parametrize(
    ("dtype", "count", "swapped", "streamed"),
    [
        ("int16", LARGE // 2, False, [(LARGE, CHIP, "int16")]),
        ("int16", LARGE // 2 - 1, False, []),
        ("int64", LARGE // 4, False, []),  # the device casts, as fewer bytes move then
        (None, LARGE // 4, True, [(LARGE, CHIP, None)]),
        (None, LARGE // 4 - 1, True, []),
        (None, LARGE // 4, False, []),
        ("int64", LARGE // 4, True, [(LARGE, CHIP, None)]),
        ("int64", LARGE // 8, True, []),  # of so many bytes after the cast
    ],
)
def test_stream_to_device__used_for_large_casts_and_copies(
    moves: Moves, dtype: str | None, count: int, swapped: bool, streamed: list[Any]
) -> None:
    """A large array is streamed if the host has to cast or copy it, and the plan says so."""
    a = np.arange(count, dtype=">i4" if swapped else "i4")
    plan = xbridge.explain(a, "toylib", device="chip", dtype=dtype)
    x = xbridge.to_backend(a, "toylib", device="chip", dtype=dtype)
    assert x.data.tolist() == a.tolist()
    assert x.data.dtype == np.dtype(dtype or "i4")
    assert moves.streamed == streamed
    assert len(moves.alone) == (not streamed)
    if streamed:
        copied, advice = FOREIGN if swapped else ("int32 becomes int16", "cast it once")
        step = next(step for step in plan.steps if step.copy_reason)
        assert (step.op, step.nbytes) == ("stream_to_device", LARGE)
        both = (advice, "keep it where it is, or move it once")
        assert step.copy_reason == ("device", f"{copied}, and it moves from cpu to chip:0", both)


def test_convert_all__error_shows_the_shape_of_the_failing_array(moves: Moves) -> None:
    """An array that fails among others is reported with its own position and shape."""
    xs = [Placed(np.ones(n, "f4"), CHIP) for n in (3, 4, 5)]
    xs[2].data[:] = -13
    with pytest.raises(xbridge.DeviceError, match=r"^at tree\[2\]: .* of shape \(5,\).*-13 is unlucky"):
        tree.to_numpy(xs)


def test_convert_all__refuses_one_array_among_others(own_registry: None) -> None:
    """An array that the backend refuses is not converted as others of its type are."""

    def unsupported(x: Placed, *, leaving: bool) -> Any:
        refused = Unsupported(xbridge.UnsupportedArrayError, "it is freed", "another")
        return refused if leaving and x.data.size == 4 else None

    module = make_placed_backend(unsupported=unsupported)
    xbridge.register_backend("toylib", module)
    xs = [Placed(np.ones(n), CHIP) for n in (3, 5, 4)]
    assert [a.size for a in tree.to_numpy(xs[:2])] == [3, 5]
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"^at tree\[2\]: .*it is freed"):
        tree.to_numpy(xs)


def test_convert_all__materializes_pending_arrays_alone(own_registry: None) -> None:
    """An array with pending operations is materialized, and those beside it are not."""

    def memory_layout(x: Placed) -> MemoryLayout:
        return get_backend("numpy").memory_layout(x.data)._replace(materialized=x.data.size != 4)

    done: list[int] = []

    def materialize(x: Placed) -> Placed:
        done.append(x.data.size)
        return Placed(-x.data, x.device)

    module = make_placed_backend(memory_layout=memory_layout, materialize=materialize)
    xbridge.register_backend("toylib", module)
    xs = [Placed(np.ones(n), CHIP) for n in (3, 4, 5, 4)]
    assert [a[0] for a in tree.to_numpy(xs)] == [1, -1, 1, -1]
    assert done == [4, 4]
    assert [a[0] for a in tree.to_numpy([xs[1], xs[3], xs[0], xs[2]])] == [-1, -1, 1, 1]
