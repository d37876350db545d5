"""A cast on the way between host and accelerator: the target's own numbers, and the fewest bytes that cross.

What crosses is what torch is asked to copy between the two, whatever a plan says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from emulated.engine import SIZES, use_sizes, use_small_buffers
from emulated.there import DEVICE, KIND, PACES, api, paced
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from inside import DTYPES, category
from rawmemory import bits, same_bits, tensor_of
from strategies import host_dtype
from strategies_casts import castable, pairs_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch_modes import Passes

import xbridge
from xbridge.backends import torch as backend
from xbridge.backends.torch import cast_matches_numpy
from xbridge.backends.torch._transfer import large, pinned
from xbridge.testing.conformance.test_casts import same_values
from xbridge.testing.strategies import host_arrays

if TYPE_CHECKING:
    from pathlib import Path

    from rawmemory import Host

NAMES = [name for name in DTYPES if hasattr(torch, name)]
EVERY = [(given, wanted) for given, wanted in pairs_of(NAMES) if given != wanted]
PAIRS = [(one, other) for one, other in EVERY if np.can_cast(host_dtype(one), host_dtype(other), "unsafe")]
"""The casts that torch has, and those of them that NumPy has."""


class Crossings(TorchDispatchMode):
    """The bytes of each copy between devices that torch is asked for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # theirs
        self.nbytes: list[int] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **kwargs or {})
        if op is torch.ops.aten._to_copy.default and made.device != args[0].device:
            assert made.dtype == args[0].dtype, "torch may send the wider one of two dtypes"
            self.nbytes.append(made.nbytes)
        return made


def crossing(x: object, target: str, **options: Any) -> tuple[Any, int]:
    """The result of a conversion and the bytes that crossed, as torch was asked and as the plan told."""
    told = [step.nbytes for step in xbridge.explain(x, target, **options).steps if step.op == "to_device"]
    with Crossings() as seen:
        made = xbridge.to_backend(x, target, **options)
    assert seen.nbytes == told
    return made, sum(seen.nbytes)


def fewest(size: int, *names: str) -> int:
    return size * min(host_dtype(name).itemsize for name in names)


def numpy_alone(given: str, wanted: str) -> bool:
    """Whether torch's cast to fewer bytes has other numbers than NumPy's, for some values."""
    cuts = category(given) == "float" and category(wanted) == "int"
    return cuts or "float8" in wanted or (given, wanted) == ("float64", "float16")


def as_tensor(array: Host) -> torch.Tensor:
    """A dense tensor of the same bits, in memory of its own."""
    tensor: torch.Tensor = tensor_of(bits(array), getattr(torch, array.dtype.name))
    return tensor


# -- every pair of dtypes --------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "wanted"), EVERY)
def test_to_backend__sends_the_fewest_bytes(given: str, wanted: str) -> None:
    """To the device, the fewest bytes cross, and the values are those of torch's cast."""
    array = castable(given, wanted, np.random.default_rng(1))
    expected = as_tensor(array).to(getattr(torch, wanted))

    for x in (array, as_tensor(array)):
        there, crossed = crossing(x, "torch", device=KIND, dtype=wanted)

        assert crossed == fewest(array.size, given, wanted)
        assert (xbridge.device_of(there), there.dtype) == (DEVICE, expected.dtype)
        assert same_values(xbridge.to_numpy(there), xbridge.to_numpy(expected))


@pytest.mark.parametrize(("given", "wanted"), PAIRS)
def test_to_numpy__fetches_the_fewest_bytes(given: str, wanted: str) -> None:
    """From the device, the fewest bytes cross, and the values are those of NumPy's cast."""
    array = castable(given, wanted, np.random.default_rng(2))
    with np.errstate(all="ignore"):
        expected = array.astype(host_dtype(wanted))

    x = as_tensor(array).to(KIND)
    back, crossed = crossing(x, "numpy", dtype=wanted)

    here = crossed == x.nbytes  # then it is NumPy's to the bits of a NaN
    assert crossed == fewest(array.size, given, given if numpy_alone(given, wanted) else wanted)
    assert same_bits(back, expected) if here else same_values(back, expected)
    assert back.flags.writeable


@pytest.mark.parametrize(("given", "wanted"), EVERY)
def test_to_backend__fetches_the_fewest_bytes_within_torch(given: str, wanted: str) -> None:
    """Within torch, the fewest bytes leave the device."""
    array = castable(given, wanted, np.random.default_rng(3))

    back, crossed = crossing(as_tensor(array).to(KIND), "torch", device="cpu", dtype=wanted)

    assert crossed == fewest(array.size, given, wanted)
    assert same_values(xbridge.to_numpy(back), xbridge.to_numpy(as_tensor(array).to(getattr(torch, wanted))))


# -- whatever is cast ------------------------------------------------------------------------------


@given(host_arrays(dtypes=st.sampled_from(NAMES), nan="any"), st.sampled_from(NAMES))
def test_to_backend__sends_the_fewest_bytes_for_any_layout(array: Host, wanted: str) -> None:
    """The number of bytes that cross does not depend on the layout of the source."""
    given = array.dtype.name
    assume((given, wanted) in PAIRS and not numpy_alone(given, wanted))
    before = bits(array)
    with np.errstate(all="ignore"):
        expected = array.astype(host_dtype(wanted))

    there, sent = crossing(array, "torch", device=KIND, dtype=wanted)
    back, fetched = crossing(xbridge.to_backend(array, "torch", device=KIND), "numpy", dtype=wanted)

    assert sent == fetched == fewest(array.size, given, wanted)
    assert same_values(xbridge.to_numpy(there), expected)
    assert same_values(back, expected)
    assert same_bits(bits(array), before)


def test_to_numpy__fetches_only_the_selected_part() -> None:
    """Of a view, only its own elements cross, after the cast."""
    x = torch.arange(24.0, dtype=torch.float64, device=KIND).reshape(4, 6)

    back, crossed = crossing(x[::2, 1::2].T, "numpy", dtype="float32")

    assert crossed == 6 * 4
    assert back.tolist() == [[1, 13], [3, 15], [5, 17]]


def test_to_numpy__resolves_conj_before_the_cast() -> None:
    """A lazy conjugation is done on the device, before the cast."""
    z = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex128, device=KIND)

    back, crossed = crossing(z.conj(), "numpy", dtype="complex64")

    assert crossed == 2 * 8
    assert back.tolist() == [1 - 2j, 3 + 4j]


def test_to_backend__memmap_widens_on_the_device(tmp_path: Path) -> None:
    """A mapped file crosses with the bytes that it has, and is widened on the device."""
    np.save(tmp_path / "pixels.npy", np.arange(6, dtype="uint8"))
    pixels = np.load(tmp_path / "pixels.npy", mmap_mode="r")

    plan = xbridge.explain(pixels, "torch", device=KIND, dtype="float32")
    there, crossed = crossing(pixels, "torch", device=KIND, dtype="float32")

    assert [(step.op, step.nbytes) for step in plan.steps if step.nbytes] == [
        ("to_device", 6),
        ("astype", 24),
    ]
    assert crossed == 6
    assert there.tolist() == [0, 1, 2, 3, 4, 5]


def test_transfer__small_arrays_widen_on_the_device() -> None:
    """Each array of a small batch crosses at its narrower dtype."""
    batch = {"a": np.arange(3, dtype="uint8"), "b": np.arange(4.0, dtype="float32"), "c": np.arange(5.0)}

    with xbridge.record() as seen:
        there = xbridge.transfer(batch, "torch", device=KIND, dtype="float32").result()

    assert sum(row.moved for row in seen.rows) == 3 * 1 + 4 * 4 + 5 * 4
    assert {name: x.dtype for name, x in there.items()} == dict.fromkeys(batch, torch.float32)
    assert {name: x.tolist() for name, x in there.items()} == {name: x.tolist() for name, x in batch.items()}


@pytest.mark.parametrize("pace", PACES)
def test_staging__cast_handles_whole_values(pace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cast before or after the buffers never splits a value."""
    use_small_buffers(monkeypatch)
    pixels = np.arange(250, dtype="uint8")

    with paced(PACES[pace]), api.stream(api.Stream()):
        there = xbridge.to_backend(pixels, "torch", device=KIND, dtype="float32")
        back = xbridge.to_numpy(there.double() * 3, dtype="float32")

    assert back.dtype == "float32"
    assert back.tolist() == [3 * n for n in range(250)]


# -- large arrays, which the host casts piece by piece ---------------------------------------------

SENT = sorted(
    pair for pair in backend.host_casts if host_dtype(pair[0]).itemsize > host_dtype(pair[1]).itemsize
)


@pytest.fixture
def _any_size_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_buffers(monkeypatch)


all_large = pytest.mark.usefixtures("_any_size_is_large")


def sent(array: Host, wanted: str, **options: Any) -> None:
    """An array of NumPy's goes to the device in one step, as NumPy would have cast it and laid it out."""
    before = bits(array)
    with np.errstate(all="ignore"):
        expected = array.astype(host_dtype(wanted), order="C" if 0 in array.strides else "K")

    _, step = xbridge.explain(array, "torch", device=KIND, **options).steps
    there = xbridge.to_backend(array, "torch", device=KIND, **options)

    assert (step.op, step.args, step.nbytes) == (
        "stream_to_device",
        (DEVICE, *options.values()),
        expected.nbytes,
    )
    assert same_values(xbridge.to_numpy(there), expected)
    assert xbridge.device_of(there) == DEVICE
    if 1 not in array.shape:
        assert there.stride() == torch.from_numpy(expected).to(KIND).stride()
    assert same_bits(bits(array), before)


TABLE = np.arange(77.0).reshape(7, 11)


@all_large
@given(st.sampled_from(SENT), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_to_backend__casts_large_arrays_of_any_layout(pair: tuple[str, str], data: st.DataObject) -> None:
    """A large array of any layout is cast during its transfer, in a single step."""
    given, wanted = pair
    array = data.draw(host_arrays(dtypes=st.just(given), nan="any").filter(lambda array: array.size))
    sent(array, wanted, dtype=wanted)


@all_large
@pytest.mark.parametrize("array", [TABLE[::-1], TABLE.T[:, ::-1], np.broadcast_to(TABLE[:1], (7, 11))])
def test_to_backend__casts_reversed_and_swapped_arrays(array: Host) -> None:
    """A large array is cast on its way from reversed strides and foreign byte orders too."""
    sent(array, "float32", dtype="float32")
    sent(array.view(array.dtype.newbyteorder()), "float32", dtype="float32")


@all_large
def test_to_backend__copies_odd_layouts_on_the_way() -> None:
    """What the host would have to copy first is copied during the transfer."""
    foreign = TABLE.astype(">f8")

    for array in (foreign, TABLE[::-1], foreign.T[::2]):
        sent(array, "float64")
        with xbridge.policy(casts="raise"), xbridge.record() as seen:
            xbridge.to_backend(array, "torch", device=KIND)
        (row,) = seen.rows
        assert (row.copied, row.moved) == (0, array.nbytes)
    wider = xbridge.to_backend(foreign.astype(">f4"), "torch", device=KIND, dtype="float64")
    assert wider.tolist() == TABLE.tolist()


@all_large
@pytest.mark.parametrize("pace", PACES)
def test_to_backend__cast_large_array_is_usable_on_any_stream(pace: str) -> None:
    """A large array that is cast on its way is complete for any stream on return."""
    source = np.arange(250.0)

    with paced(PACES[pace]), api.stream(api.Stream()):
        there = xbridge.to_backend(source, "torch", device=KIND, dtype="float32")
        later = xbridge.transfer([source], "torch", device=KIND, dtype="float32").result()[0]
        source[:] = -1

    assert there.tolist() == later.tolist() == list(range(250))
    assert not there._is_view()


@all_large
def test_to_backend__checks_values_before_sending() -> None:
    """A value that would be lost is found before a large array is sent."""
    numbers = np.array([1.0, 1e300])

    plan = xbridge.explain(numbers, "torch", device=KIND, dtype="default")
    assert [step.op for step in plan.steps] == ["to_numpy", "check_cast", "stream_to_device"]
    with pytest.raises(xbridge.ValueLossError):
        xbridge.to_backend(numbers, "torch", device=KIND, dtype="default")
    named = xbridge.asarray(numbers, backend="torch", device=KIND, dtype="float32", requires_grad=True)
    assert named.tolist() == [1, np.inf]
    assert (named.is_leaf, named.requires_grad) == (True, True)


def test_to_backend__casts_dask_chunks_if_fewer_bytes_cross() -> None:
    """A Dask array is cast in its chunks if fewer bytes are sent then."""
    da = pytest.importorskip("dask.array")
    for before, after, verbs in (
        (
            "float64",
            "float32",
            ["in_parts", "astype", "materialize", "to_numpy", "as_writable", "from_numpy"],
        ),
        ("float32", "float64", ["materialize", "to_numpy", "as_writable", "from_numpy"]),
    ):
        x = da.ones(100, dtype=before, chunks=30)
        moved = ["to_device"] if before == "float64" else ["to_device", "astype"]
        plan = xbridge.explain(x, "torch", device=KIND, dtype=after)
        assert [step.op for step in plan.steps] == verbs + moved
        there = xbridge.to_backend(x, "torch", device=KIND, dtype=after)
        assert (str(there.dtype), there.tolist()) == (f"torch.{after}", [1.0] * 100)


@all_large
def test_policy__fused_cast_is_a_cast_and_a_transfer() -> None:
    """A cast during a transfer counts as both for policies and records."""
    numbers = np.ones(100)

    with xbridge.policy(casts="raise"), pytest.raises(xbridge.PolicyError, match="forbids casts"):
        xbridge.to_backend(numbers, "torch", device=KIND, dtype="float32")
    with xbridge.policy(transfers="raise"), pytest.raises(xbridge.PolicyError, match="forbids transfers"):
        xbridge.to_backend(numbers, "torch", device=KIND, dtype="float32")
    with xbridge.policy(copies="raise"), xbridge.record() as seen:
        xbridge.to_backend(numbers, "torch", device=KIND, dtype="float32")

    (row,) = seen.rows
    assert (row.copied, row.moved) == (0, 400)
    assert row.avoid == "cast it once; keep it where it is, or move it once (if it stays the same)"


@pytest.mark.parametrize("setting", [0, 64])
def test_explain__casts_on_the_way_from_the_staged_size(
    setting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array is cast on its way exactly if it is large enough for the buffers."""
    monkeypatch.setenv(pinned.SETTING, str(setting))
    monkeypatch.setattr(pinned, "LEAST", 4096)
    use_small_buffers(monkeypatch)
    use_sizes(monkeypatch, pinned._read_setting())
    numbers = np.arange(1024.0)[::-1]

    for array, through in ((numbers, setting > 0), (numbers[1:], False)):
        verbs = [step.op for step in xbridge.explain(array, "torch", device=KIND, dtype="float32").steps]
        there = xbridge.to_backend(array, "torch", device=KIND, dtype="float32")
        assert verbs == (
            ["to_numpy", "stream_to_device"] if through else ["to_numpy", "astype", "from_numpy", "to_device"]
        )
        assert there.tolist() == array.tolist()


@all_large
def test_explain__casts_first_under_a_mode() -> None:
    """Where torch takes part in the move, the cast comes first."""
    with Passes():  # type: ignore[no-untyped-call] # theirs
        plan = xbridge.explain(TABLE, "torch", device=KIND, dtype="float32")
        there = xbridge.to_backend(TABLE, "torch", device=KIND, dtype="float32")

    assert [step.op for step in plan.steps] == ["to_numpy", "astype", "from_numpy", "to_device"]
    assert there.tolist() == TABLE.tolist()


@all_large
def test_to_backend__failure_during_the_cast_is_an_xbridge_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure while a large array is cast raises `DeviceError` with the step."""
    monkeypatch.setattr(large, "fill", lambda *_: 1 / 0)

    failed = f"stream_to_device {DEVICE} float32 failed with ZeroDivisionError"
    with pytest.raises(xbridge.DeviceError, match=failed):
        xbridge.to_backend(TABLE, "torch", device=KIND, dtype="float32")


@pytest.mark.parametrize("size", [3, 1 << 10])
@pytest.mark.parametrize("options", [{}, {"dtype": "float64"}, {"dtype": "float32"}], ids=str)
def test_policy__does_not_depend_on_the_size(
    options: dict[str, Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy forbids the same calls for small arrays and large ones."""
    use_small_buffers(monkeypatch)
    use_sizes(monkeypatch, SIZES._replace(least=1 << 10))
    foreign = np.arange(size + 0.0).astype(">f8")
    word = "casts" if options == {"dtype": "float32"} else "copies"

    for forbidden in (word, "transfers"):
        rules: Any = {forbidden: "raise"}
        with xbridge.policy(**rules), pytest.raises(xbridge.PolicyError, match=f"forbids {forbidden}"):
            xbridge.to_backend(foreign, "torch", device=KIND, **options)
    others: Any = dict.fromkeys({"copies", "casts", "detaches"} - {word}, "raise")
    with xbridge.policy(**others):
        assert len(xbridge.to_backend(foreign, "torch", device=KIND, **options)) == size


# -- the rest of the contract ----------------------------------------------------------------------


@pytest.mark.parametrize(("given", "wanted"), [("float64", "float32"), ("float32", "float64")])
def test_to_backend__gradient_flows_through_cast_and_move(given: str, wanted: str) -> None:
    """A gradient flows through a cast and a move together, with the fewest bytes."""
    w = torch.ones(3, dtype=getattr(torch, given), requires_grad=True)

    there, sent = crossing(w, "torch", device=KIND, dtype=wanted, grad="keep")
    back, fetched = crossing(there * 3, "torch", device="cpu", dtype=given, grad="keep")
    back.sum().backward()

    assert sent == fetched == 3 * 4
    assert w.grad is not None
    assert (w.grad.dtype, w.grad.tolist()) == (w.dtype, [3, 3, 3])


def test_to_numpy__detaches_before_the_cast() -> None:
    """A tracked tensor leaves its graph before it is cast for NumPy."""
    w = torch.ones(3, dtype=torch.float64, device=KIND, requires_grad=True)

    plan = xbridge.explain(w, "numpy", dtype="float32")

    assert [step.op for step in plan.steps] == ["detach", "astype", "to_device", "to_numpy", "from_numpy"]
    assert plan.cuts_graph
    assert crossing(w * 2, "numpy", dtype="float32")[0].tolist() == [2, 2, 2]


@pytest.mark.parametrize("value", [0.1, 1e300])
def test_to_backend__checks_and_casts_before_leaving_the_device(value: float) -> None:
    """A default dtype is checked and cast on the device, before the move."""
    jax = pytest.importorskip("jax")
    x = torch.tensor([1.0, value], dtype=torch.float64, device=KIND)

    with jax.enable_x64(False):
        plan = xbridge.explain(x, "jax", device="cpu", dtype="default")
        assert [step.op for step in plan.steps[:3]] == ["check_cast", "astype", "to_device"]
        if value > 1:
            with pytest.raises(xbridge.ValueLossError):
                xbridge.to_backend(x, "jax", device="cpu", dtype="default")
        else:
            made, crossed = crossing(x, "jax", device="cpu", dtype="default")
            assert crossed == 2 * 4
            assert made.tolist() == np.array([1.0, value], "float32").tolist()


def test_to_backend__leaves_subnormal_casts_to_jax() -> None:
    """A cast that flushes subnormals in JAX is done by JAX."""
    jax = pytest.importorskip("jax")
    x = torch.tensor([1e-40, 1.0], dtype=torch.float64, device=KIND)

    with jax.enable_x64(True):
        made, crossed = crossing(x, "jax", device="cpu", dtype="float32")
        own = jax.numpy.asarray(x.cpu().numpy()).astype("float32")

    assert crossed == 2 * 8
    assert same_bits(np.asarray(made), np.asarray(own))


def test_cast_matches_numpy__not_for_integers_on_mps() -> None:
    """A cast of large integers that MPS does differently is done on the host."""
    assert cast_matches_numpy("int64", "int32", xbridge.Device("cuda:0"))
    assert not cast_matches_numpy("int64", "int32", xbridge.Device("mps:0"))


def test_to_backend__copy_false_names_the_first_copy() -> None:
    """`copy=False` names the first step that would need new memory."""
    x = torch.ones(3, dtype=torch.float64, device=KIND)

    with pytest.raises(xbridge.CopyError, match="float64 becomes float32"):
        xbridge.to_backend(x, "numpy", dtype="float32", copy=False)
    with pytest.raises(xbridge.CopyError, match="it moves from cpu"):
        xbridge.to_backend(np.ones(3, "uint8"), "torch", device=KIND, dtype="float32", copy=False)
