"""Calls on tensors of a device: where arrays meet, where results are, and what a record or `check` sees."""

from __future__ import annotations

import json
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from emulated.engine import watch_packs
from emulated.there import DEVICE, KIND
from inside import get_backend

import xbridge
from xbridge import policy, record, tree
from xbridge.errors import DeviceError
from xbridge.testing.check import worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def inputs() -> dict[str, Any]:
    return {
        "numpy": np.arange(3, dtype="f4"),
        "torch": torch.arange(3.0),
        "there": torch.arange(3.0).to(KIND),
        "number": 2,
        "list": [0.0, 1.0, 2.0],
    }


ORDERS = [(*order, "number", "list") for order in permutations(("numpy", "torch", "there"))]


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_align_back__meets_on_the_device_of_the_first_array(order: tuple[str, ...]) -> None:
    """The first array decides where arrays meet, unless a device is named; results go back."""
    given = inputs()
    first = next(name for name in order if name in ("numpy", "torch", "there"))
    own = next(name for name in order if name in ("torch", "there"))
    there = {"numpy": "cpu", "torch": "cpu", "there": DEVICE}
    for options, backend, device in (
        ({}, "numpy" if first == "numpy" else "torch", there[first]),
        ({"backend": "torch"}, "torch", there[own]),
        ({"like": given["there"]}, "torch", DEVICE),
        ({"like": given["torch"]}, "torch", "cpu"),
        ({"like": given["there"], "device": "cpu"}, "torch", "cpu"),
        ({"like": given["there"], "backend": "numpy"}, "numpy", "cpu"),
    ):
        arrays, restore = xbridge.align_back(*(given[name] for name in order), **options)
        for name, x in zip(order, arrays, strict=True):
            if name != "number":
                assert (xbridge.backend_of(x), xbridge.device_of(x)) == (backend, device)
                assert xbridge.to_list(x) == [0, 1, 2]
        for name in ("numpy", "torch", "there"):
            back = restore(arrays[order.index("list")], to=order.index(name))
            assert xbridge.device_of(back) == there[name]
            assert xbridge.to_list(back) == [0, 1, 2]


aligned: Any = xbridge.aligned
jax = pytest.importorskip("jax")

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "numpy": aligned(backend="numpy", vjp=lambda g, y, a, b: (g * b, g * a))(lambda a, b: a * b),
    "jax": aligned(backend="jax", device="cpu")(lambda a, b: a * b),
    "torch": aligned(backend="torch", device="cpu")(lambda a, b: a * b),
}
functions = pytest.mark.parametrize("f", FUNCTIONS.values(), ids=list(FUNCTIONS))


def there(value: float, *, tracked: bool = False) -> Any:
    return torch.full((2,), float(value), device=DEVICE, requires_grad=tracked)


WAYS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda f: f(there(2), there(3)),
    "tracked": lambda f: f(there(2), there(3, tracked=True)),
    "a host array first": lambda f: f(np.full(2, 2, "f4"), there(3, tracked=True)),
    "vmap": lambda f: torch.vmap(f)(there(2), there(3)),
    "jvp": lambda f: torch.func.jvp(lambda x: f(x, there(6)), (there(2),), (there(1),))[1],
    "grad": lambda f: torch.func.grad(lambda x: f(x, there(6)).sum())(there(2)),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
@functions
def test_aligned__results_are_on_the_callers_device(f: Any, way: Callable[[Any], Any]) -> None:
    """`device` is where the function computes; results and gradients stay with the caller."""
    if f is FUNCTIONS["numpy"] and way is WAYS["jvp"]:
        return  # it has no jvp
    made = way(f)
    assert str(made.device) == DEVICE
    assert made.tolist() == [6, 6]


@functions
def test_aligned__gradients_are_on_the_devices_of_their_arguments(f: Any) -> None:
    """A gradient is on the device of its argument, and the result on that of the first one tracked."""
    here, far = torch.full((2,), 2.0), there(3, tracked=True)
    y = f(here, far)
    assert str(y.device) == DEVICE
    (gradient,) = torch.autograd.grad(y.sum(), far)
    assert (str(gradient.device), gradient.tolist()) == (DEVICE, [2, 2])
    y = f(here.requires_grad_(), far)
    assert y.is_cpu
    places = [str(g.device) for g in torch.autograd.grad(y.sum(), (here, far))]
    assert places == ["cpu", DEVICE]


@pytest.mark.parametrize("tracked", [False, True])
def test_aligned__is_compiled_for_a_device(*, tracked: bool) -> None:
    """A compiled program computes on the device that `device` names."""
    torch._dynamo.reset()
    f = torch.compile(FUNCTIONS["jax"], fullgraph=True, backend="eager")
    here, far = torch.full((2,), 2.0), there(3, tracked=tracked)
    assert str(f(far, far).device) == DEVICE
    assert str(f(here, far).device) == (DEVICE if tracked else "cpu")
    assert f(here, far).tolist() == [6, 6]


def test_aligned__refuses_a_device_that_the_library_lacks() -> None:
    """A library that lacks the device of an array refuses it unless `device` is given."""
    if DEVICE.startswith("emu"):
        f = aligned(backend="jax")(jax.numpy.sin)
        with pytest.raises(DeviceError, match="try device='cpu'"):
            f(there(2, tracked=True))


@pytest.mark.parametrize("options", [{}, {"backend": "torch"}, {"backend": "numpy"}], ids=str)
def test_asarray__numpy_scalar_follows_the_arrays(options: dict[str, Any]) -> None:
    """A NumPy scalar in a list goes to the device of the arrays beside it."""
    x = torch.full((), 2.0, device=KIND)

    for xs, values in (([np.float32(1), x], [1, 2]), ([x, np.float32(1), 3], [2, 1, 3])):
        made = xbridge.asarray(xs, **options)
        assert made.tolist() == values
        assert xbridge.device_of(made) == ("cpu" if options == {"backend": "numpy"} else DEVICE)


def test_tree__movable_object_goes_to_the_device_of_the_arrays() -> None:
    """An object moves itself to the device that "gpu" and a kind stand for, whose names torch knows."""
    movable = type("Movable", (), {"to": lambda self, device: torch.ones(1).to(device)})()
    for device in ("gpu", KIND):
        moved = tree.to_torch([movable, torch.ones(1)], device=device, movables=True)
        assert [xbridge.device_of(x) for x in moved] == [DEVICE, DEVICE]


def test_tree__lengths_of_a_packed_sequence_stay_on_the_host() -> None:
    """The batch sizes of a packed sequence are neither moved nor cast, and its indices follow the data."""
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 3), torch.ones(4, 3)], enforce_sorted=False)
    options: dict[str, Any] = {"device": KIND, "dtype": "float16"}
    for made in (
        tree.to_torch([packed], **options)[0],
        tree.to_torch([packed], movables=True, **options)[0],
        tree.align([packed], backend="torch", **options)[0][0],
        xbridge.transfer([packed], "torch", **options).result()[0],
        next(iter(xbridge.prefetch([packed], "torch", **options))),
    ):
        assert type(made) is type(packed)
        assert [x.device.type for x in made] == [KIND, "cpu", KIND, KIND]
        assert [x.dtype for x in made] == [torch.float16, *[torch.int64] * 3]
    assert [x.device.type for x in tree.to_torch(made, device="cpu")] == ["cpu"] * 4
    host = tree.to_numpy(made)
    assert [type(x) for x in host] == [np.ndarray, *[torch.Tensor] * 3]
    assert [x.device.type for x in host[1:]] == ["cpu"] * 3
    assert [x.device.type for x in tree.to_torch(host, device=KIND)] == [KIND, "cpu", KIND, KIND]


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


BATCH = [np.full(2, float(i)) for i in range(5)] + [np.arange(3)]


@pytest.mark.usefixtures("small_buffers")
def test_record__counts_each_array_of_a_pack() -> None:
    """A record counts each array of a pack with its own bytes."""
    with record() as seen:
        there = xbridge.transfer(BATCH, "torch", device=KIND).result()
        back = xbridge.transfer(there, "numpy").result()

    assert [x.tolist() for x in back] == [x.tolist() for x in BATCH]
    counted = {(row.source, row.target): (row.calls, row.copied, row.moved) for row in seen.rows}
    assert counted == {
        ("numpy float64 on cpu", f"torch float64 on {DEVICE}"): (5, 0, 80),
        ("numpy int64 on cpu", f"torch int64 on {DEVICE}"): (1, 0, 24),
        (f"torch float64 on {DEVICE}", "numpy float64 on cpu"): (5, 0, 80),
        (f"torch int64 on {DEVICE}", "numpy int64 on cpu"): (1, 0, 24),
    }


@pytest.mark.usefixtures("small_buffers")
def test_policy__forbidden_transfer_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a policy forbids transfers, nothing is sent, in this thread or another."""
    sent: list[object] = []
    monkeypatch.setattr(get_backend("torch").transfers, "to_device_many", lambda *args: sent.append(args))
    monkeypatch.setattr(get_backend("torch"), "to_device", lambda *args: sent.append(args))

    with policy(transfers="raise"):
        under_way = xbridge.transfer(BATCH, "torch", device=KIND)
        ahead = iter(xbridge.prefetch([BATCH], "torch", device=KIND))
        with pytest.raises(xbridge.PolicyError, match="transfers"):
            next(ahead)
    with pytest.raises(xbridge.PolicyError, match="transfers"):
        under_way.result()

    assert not sent


def test_worker__finds_a_missing_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten device is found, and its program shows it on the emulated accelerator."""
    monkeypatch.setattr(worker, "_limit_memory", lambda: None)
    path = tmp_path / "results"
    worker.main(str(path), "planted:missing_device", "0", "torch", "60")
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    found = next(line["finding"] for line in lines if "finding" in line)
    assert (found["backend"], found["needed"]) == ("torch", ["another device"])
    assert "emulated.install()\n" in found["program"]
    assert "device='emu:0'" in found["program"]
    assert "does not fail" not in found["program"]
