"""Trees on their way to a device: small arrays cross together, and each is what it would be alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from emulated.engine import use_small_buffers, watch_packs
from emulated.there import DEVICE, KIND

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = {"x": np.arange(4.0), "y": [np.ones(3), "text", np.arange(2)], "large": np.zeros(1 << 16)}


def test_record__shows_where_a_list_was_stacked() -> None:
    """A record shows the device on which a list was stacked."""
    x = torch.ones(2, device=KIND)
    with xbridge.record() as home:
        xbridge.asarray([x, x], backend="numpy")
    with xbridge.record() as there:
        xbridge.asarray([torch.ones(2), x], device=KIND)

    for seen, place in ((home, "numpy float32 on cpu"), (there, f"torch float32 on {DEVICE}")):
        (stacked,) = [row for row in seen.rows if row.copied]
        assert (stacked.source, stacked.target) == (place, place)


@pytest.mark.parametrize("options", [{}, {"backend": "torch"}, {"backend": "numpy"}], ids=str)
def test_asarray__numpy_scalar_follows_the_arrays(options: dict[str, Any]) -> None:
    """A NumPy scalar in a list goes to the device of the arrays beside it."""
    x = torch.full((), 2.0, device=KIND)

    for xs, values in (([np.float32(1), x], [1, 2]), ([x, np.float32(1), 3], [2, 1, 3])):
        made = xbridge.asarray(xs, **options)
        assert made.tolist() == values
        assert xbridge.device_of(made) == ("cpu" if options == {"backend": "numpy"} else DEVICE)


def test_tree__error_names_the_array_in_a_pack() -> None:
    """An error about one of several packed arrays names its path."""
    gone = torch.ones(3)
    gone.untyped_storage().resize_(0)

    refused = [(gone, "its storage was freed")]
    if KIND == "emu":  # which has no sparse tensors
        refused.append((torch.eye(3).to_sparse(), r"of shape \(3, 3\)"))
    for bad, reason in refused:
        with pytest.raises(xbridge.XBridgeError, match=rf"^at tree\[2\]: .*{reason}"):
            tree.to_backend([torch.ones(2), torch.ones(5), bad, torch.ones(4)], "torch", device=KIND)


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many arrays crossed together, pack by pack."""
    return watch_packs(monkeypatch)


@pytest.mark.parametrize("options", [{}, {"dtype": "float64"}, {"copy": True}, {"grad": "detach"}], ids=str)
@pytest.mark.parametrize(
    ("home", "backend", "place"), [(KIND, "numpy", {}), ("cpu", "torch", {"device": KIND})]
)
def test_tree__thousand_small_tensors_arrive_in_order(
    home: str, backend: str, place: dict[str, Any], options: dict[str, Any]
) -> None:
    """Each of a thousand small tensors of two dtypes has its values and its shape."""
    xs = [
        torch.full((1 + i % 7,), i, dtype=(torch.float32, torch.int32)[i % 2]).to(home) for i in range(1000)
    ]
    xs[500] = torch.full((2,), 500.0, device=home, requires_grad=True)
    made = tree.to_backend(xs, backend, **place, **options)
    assert [int(xbridge.to_numpy(y)[-1]) for y in made] == list(range(1000))
    assert [tuple(y.shape) for y in made] == [tuple(x.shape) for x in xs]


WAYS: dict[str, Callable[[Any], Any]] = {
    "to_backend": lambda batch: tree.to_backend(batch, "torch", device=KIND),
    "align": lambda batch: tree.align(batch, backend="torch", device=KIND)[0],
    "transfer": lambda batch: xbridge.transfer(batch, "torch", device=KIND).result(),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_tree__small_arrays_are_sent_together(way: Callable[[Any], Any], packs: list[int]) -> None:
    """The small arrays of a tree go to the device in one pack."""
    there = way(BATCH)

    assert packs == [3]
    arrays = [there["x"], there["y"][0], there["y"][2], there["large"]]
    assert [x.device for x in arrays] == [torch.device(DEVICE)] * 4
    assert [x.tolist() for x in arrays[:3]] == [[0, 1, 2, 3], [1, 1, 1], [0, 1]]
    assert there["y"][1] == "text"


@pytest.mark.parametrize("idle", [True, False])
def test_tree__small_arrays_are_fetched_together(idle: bool, packs: list[int]) -> None:
    """The small tensors of a tree come back in one pack."""
    there = [torch.full((3,), i, device=DEVICE) for i in range(4)]

    made = tree.to_numpy([*there, torch.ones(2)], copy=None if idle else True)

    assert packs == [4]
    assert [x.tolist() for x in made] == [[i] * 3 for i in range(4)] + [[1, 1]]


@pytest.mark.parametrize(
    "bring",
    [
        lambda xs: tree.to_backend(xs, "torch", device="cpu"),
        lambda xs: tree.align([torch.zeros(1)], xs)[1],
        lambda xs: xbridge.transfer(xs, "torch", device="cpu").result(),
    ],
    ids=["to_backend", "align", "transfer"],
)
def test_tree__moves_only_what_is_elsewhere(bring: Callable[[Any], Any]) -> None:
    """Tensors that are already in place are returned themselves."""
    here, there = torch.ones(2), torch.full((2,), 2.0, device=DEVICE)

    made = bring([here, there, here])

    assert [x.device.type for x in made] == ["cpu"] * 3
    assert made[0] is made[2] is here
    assert made[1].tolist() == [2, 2]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_tree__error_names_an_array_that_cannot_be_moved(way: Callable[[Any], Any]) -> None:
    """An array that cannot be converted is named by its path."""
    with pytest.raises(xbridge.DTypeError, match=r"at tree(\[0\])?\['y'\]\[1\]: cannot convert"):
        way({"x": np.ones(1), "y": [np.ones(2), np.array([None])]})


def test_tree__dask_arrays_are_computed_and_sent_together(packs: list[int]) -> None:
    """Dask arrays in a tree are computed in one go and sent in packs."""
    da = pytest.importorskip("dask.array")
    runs = []

    def counted(chunk: Any) -> Any:
        runs.append(chunk.shape)
        return chunk + 1

    x = da.ones(6, chunks=6).map_blocks(counted, dtype="float64", meta=np.empty(0))
    there = tree.to_backend({"a": x, "b": [x * 2, np.ones(2)]}, "torch", device=KIND)

    assert runs == [(6,)]
    assert sorted(packs) == [1, 2]
    assert (there["a"].tolist(), there["b"][0].tolist()) == ([2] * 6, [4] * 6)
    assert {str(y.device) for y in (there["a"], *there["b"])} == {DEVICE}


@pytest.mark.parametrize("default", [KIND, "cpu", "meta"])
def test_tree__ignores_the_default_device(default: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever torch's default device is, everything arrives where it was sent."""
    batch = [np.arange(n + 0.0) for n in (3, 4, 200)]

    use_small_buffers(monkeypatch)
    with torch.device(default):
        there = tree.to_backend(batch, "torch", device=KIND)
        narrow = xbridge.transfer(batch, "torch", device=KIND, dtype="float32").result()
        back = tree.to_numpy(there)

    assert {str(x.device) for x in (*there, *narrow)} == {DEVICE}
    for given, wide, single, again in zip(batch, there, narrow, back, strict=True):
        assert given.tolist() == wide.tolist() == single.tolist() == again.tolist()
