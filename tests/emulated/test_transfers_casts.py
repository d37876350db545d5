"""A cast on the way between host and accelerator: the target's own numbers, and the fewest bytes that cross.

What crosses is what torch is asked to copy between the two, whatever a plan says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from emulated.engine import use_sizes, use_small_buffers
from emulated.there import DEVICE, KIND, PACES, api, paced
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inside import DTYPES, category
from rawmemory import bits, same_bits, tensor_of
from strategies import host_dtype
from strategies_casts import castable, pairs_of
from torch.utils._python_dispatch import TorchDispatchMode

import xbridge
from xbridge.backends import torch as backend
from xbridge.backends.torch import _transfer
from xbridge.testing.conformance._cases import same_values
from xbridge.testing.strategies import host_arrays

if TYPE_CHECKING:
    from rawmemory import Host

NAMES = [name for name, it in DTYPES.items() if hasattr(torch, name) and not it.is_packed]
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
    monkeypatch.setenv(_transfer.SETTING, str(setting))
    monkeypatch.setattr(_transfer, "LEAST", 4096)
    use_sizes(monkeypatch, _transfer.sizes.__wrapped__())
    numbers = np.arange(1024.0)[::-1]

    for array, through in ((numbers, setting > 0), (numbers[1:], False)):
        verbs = [step.op for step in xbridge.explain(array, "torch", device=KIND, dtype="float32").steps]
        there = xbridge.to_backend(array, "torch", device=KIND, dtype="float32")
        assert verbs == (
            ["to_numpy", "stream_to_device"] if through else ["to_numpy", "astype", "from_numpy", "to_device"]
        )
        assert there.tolist() == array.tolist()


# -- the rest of the contract ----------------------------------------------------------------------


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
