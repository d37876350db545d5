"""Packs: what is declined, what is kept, and what happens if the device fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from emulated.engine import SIZES, use_sizes, use_small_buffers, watch_packs
from emulated.there import DEVICE, KIND, PACES, api, paced
from inside import get_backend

import xbridge
import xbridge.tree

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three buffers, in each of which there is room for a few arrays."""
    use_small_buffers(monkeypatch)
    use_sizes(monkeypatch, SIZES._replace(chunk=1024, buffers=3, least=1 << 20))


def arrays(n: int = 3) -> list[np.ndarray]:
    return [np.arange(5.0) + i for i in range(n)]


def tensors(n: int = 3) -> list[torch.Tensor]:
    return [torch.arange(5.0, dtype=torch.float64).to(KIND) + i for i in range(n)]


def equal(made: list[Any], given: list[np.ndarray]) -> bool:
    return [np.asarray(x.cpu() if isinstance(x, torch.Tensor) else x).tolist() for x in made] == [
        x.tolist() for x in given
    ]


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
def test_batch__odd_arrays_are_converted_one_by_one(pace: bool) -> None:
    """An unusual array in a batch does not keep the others from being packed."""
    odd = [np.arange(6.0)[::2], np.ones(3, ">f4"), np.zeros((0, 2)), np.zeros(1 << 12), np.array(["text"])]
    given = [*arrays(20), *odd]
    with paced(pace):
        there = xbridge.tree.to_backend(given, "torch", device=KIND)
        assert there[-1] is odd[-1]
        assert equal(there[:-1], given[:-1])
        assert len({x.untyped_storage().data_ptr() for x in there[:4]}) == 1
        brief = torch.ones(2, device=KIND).to(torch.bfloat16)
        strange = [tensors(1)[0][::2], torch.ones(2), brief]
        back = xbridge.tree.to_numpy([*there[:20], *strange])
        assert equal(back[:20], given[:20])
        assert [x.tolist() for x in back[20:]] == [[0, 2, 4], [1, 1], [1, 1]]
        assert back[0].base is back[3].base
        assert back[0].flags.writeable


def test_batch__is_never_moved_without_a_copy() -> None:
    """`copy=False` is refused for arrays that would be packed, as for a single one."""
    with pytest.raises(xbridge.CopyError):
        xbridge.tree.to_backend(arrays(), "torch", device=KIND, copy=False)
    with pytest.raises(xbridge.CopyError):
        xbridge.tree.to_numpy(tensors(), copy=False)


@pytest.mark.parametrize("many", [arrays, tensors])
def test_batch__failing_device_leaves_all_to_plans(
    many: Callable[[int], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the device fails while two packs are on their way, no array of them is returned."""
    moves, given = get_backend("torch").transfers, many(20)

    def fail(*_: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(api.Event, "synchronize", fail)
        made = moves.send_many(given, xbridge.Device(DEVICE)) if many is arrays else moves.fetch_many(given)
    assert made == [None] * 20


@pytest.mark.parametrize("pinning", [True, False])
def test_batch__falls_back_without_memory_for_a_pack(pinning: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory for a pack is lacking, arrays are moved one by one."""
    given, there, empty = arrays(), tensors(), torch.empty

    def failing(*args: Any, **options: Any) -> torch.Tensor:
        if options.get("dtype") is torch.uint8 and bool(options.get("pin_memory")) is pinning:
            message = "no memory is left"
            raise RuntimeError(message)
        return empty(*args, **options)

    def one_by_one(xs: list[torch.Tensor], device: xbridge.Device) -> list[torch.Tensor]:
        return [x.to(torch.device(device)) for x in xs]

    monkeypatch.setattr(get_backend("torch").transfers, "to_device_many", one_by_one)
    monkeypatch.setattr(torch, "empty", failing)
    assert equal(xbridge.tree.to_backend(given, "torch", device=KIND), given)
    assert equal(xbridge.tree.to_numpy(there), given)
    assert equal(xbridge.transfer(there, "numpy").result(), given)
    assert equal(xbridge.transfer(given, "torch", device=KIND).result(), given)


def test_batch__arrays_of_a_pack_are_tracked_one_by_one() -> None:
    """A gradient, a change and a record concern one array, although a pack has one memory for all."""
    xbridge.tree.to_backend(arrays(), "torch", device=KIND)
    with xbridge.record() as seen:
        watched = xbridge.tree.to_backend(arrays(), "torch", device=KIND)
    assert [(row.calls, row.moved) for row in seen.rows] == [(3, 120)]
    for w, x, changed in (xbridge.tree.to_backend(arrays(), "torch", device=KIND), watched):
        assert not w.requires_grad
        y = (w.requires_grad_() * x).sum()
        changed.add_(1)  # if it counted as a change of `x`, torch would refuse the next line
        y.backward()
        assert equal(
            [w.grad, *xbridge.tree.to_numpy([x, changed])], [arrays()[1], arrays()[1], arrays()[2] + 1]
        )
        assert x.grad is changed.grad is None
        back = xbridge.tree.to_numpy([w, x, w * 2])
        assert equal(back, [arrays()[0], arrays()[1], arrays()[0] * 2])
        with pytest.raises(xbridge.GradientError, match=r"tree\[2\]"):
            xbridge.tree.to_numpy([x, changed, w], grad="keep")


SHAPES: dict[str, list[tuple[int, ...]]] = {
    "without gaps": [(32,)] * 3,
    "rows without gaps": [(4, 8)] * 3,
    "rows": [(2, 3)] * 3,
    "numbers": [()] * 3,
    "without gaps, of several shapes": [(32,), (4, 8), (2, 32)],
    "of several shapes": [(), (5,), (2, 3), (1, 1, 7)],
}


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_batch__is_one_pack_whatever_the_shapes(
    shapes: list[tuple[int, ...]], pace: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays of one shape or of several, with gaps after them or without, arrive in one pack."""
    given = [np.full(shape, i + 0.5) for i, shape in enumerate(shapes)]
    seen = watch_packs(monkeypatch)
    with paced(pace):
        there = xbridge.tree.to_backend(given, "torch", device=KIND)
        back = xbridge.tree.to_numpy(there)
        assert equal(there, given)
        assert equal(back, given)
    assert seen == [len(shapes)] * 2
    assert len({id(b.base) for b in back}) == 1
