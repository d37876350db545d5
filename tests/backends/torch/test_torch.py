"""The backend of torch by itself: what its shortcuts take, its devices, and its rarer tensors."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from exporters import Exporter
from rawmemory import overlaps

import xbridge
from xbridge._registry.registry import get

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

CPU = xbridge.Device("cpu")

TENSORS: dict[str, Callable[[], Tensor]] = {
    "dense": lambda: torch.arange(6.0),
    "a part": lambda: torch.arange(6.0)[2:],
    "reversed axes": lambda: torch.arange(6.0).reshape(2, 3).T,
    "every second": lambda: torch.arange(6.0)[::2],
    "tracked": lambda: torch.arange(6.0).requires_grad_(),
    "a tracked part": lambda: torch.arange(6.0).requires_grad_()[1:],
}


@pytest.mark.parametrize("name", TENSORS)
def test_fast_to_numpy__shares_memory(name: str) -> None:
    """Plain tensors are shared, and those that require grad are read-only."""
    x = TENSORS[name]()
    host = get("torch").fast.to_numpy(x)
    assert host is not None
    assert overlaps(host, x.detach())
    assert host.tolist() == x.tolist()
    assert host.flags.writeable is not x.requires_grad


def test_fast_from_numpy__copies_read_only_arrays() -> None:
    """Writable arrays are shared and read-only ones are copied."""
    host = np.arange(3.0)
    made: Any = get("torch").fast.from_numpy(host)
    host[0] = 7
    assert made.tolist() == [7, 1, 2]
    host.flags.writeable = False
    copied: Any = get("torch").fast.from_numpy(host)
    copied[0] = 0
    assert host.tolist() == [7, 1, 2]


def test_stack_many__needs_like_tensors() -> None:
    """Tensors of one shape and dtype that are inside of their storage are stacked; others are declined."""
    stack_many: Any = get("torch").fast.stack_many
    assert stack_many([torch.ones(2), torch.zeros(2)]).tolist() == [[1, 1], [0, 0]]
    assert stack_many([torch.ones(2), torch.zeros(3)[1:]]).tolist() == [[1, 1], [0, 0]]
    assert stack_many([torch.ones(2), torch.zeros(2).double()]) is None
    assert stack_many([torch.ones(2), torch.zeros(3)]) is None
    for shrunk in (torch.zeros(3)[1:], torch.zeros(4)[::2]):
        shrunk.untyped_storage().resize_(8)
        assert stack_many([shrunk, shrunk]) is None
        assert stack_many([torch.zeros(8)[:: shrunk.stride(0)][:2], shrunk]) is None


def test_asarray__nested_list_of_one_tensor() -> None:
    """A tensor in nested lists gets an axis for each list."""
    assert xbridge.asarray([[torch.ones(2)]]).shape == (1, 1, 2)
    assert xbridge.asarray([[torch.ones(3)[1:]]]).shape == (1, 1, 2)


def test_from_numpy__converts_ulonglong() -> None:
    """NumPy's second unsigned 64-bit dtype keeps its values."""
    host = np.array([0, 1, 2**64 - 1], np.ulonglong)
    made = get("torch").from_numpy(host)
    assert (made.dtype, made.tolist()) == (torch.uint64, [0, 1, 2**64 - 1])


def test_materialize__zero_tensor_stays_on_its_device() -> None:
    """A zero tensor without memory is made on the device that it names."""
    x = torch._efficientzerotensor((3,), device="meta")
    assert get("torch").materialize(x).device.type == "meta"


@pytest.mark.parametrize("items", [1, 7, 100])
@pytest.mark.parametrize(
    ("dtype", "nan"), [("bfloat16", 0x7FC5), ("bfloat16", 0x7F85), ("float16", 0x7E05), ("float16", 0x7C05)]
)
def test_materialize__negates_nan_bit_for_bit(dtype: str, nan: int, items: int) -> None:
    """A pending negation flips the sign of NaN and nothing else: in a copy, in a stack, and in NumPy.

    A NaN may be a quiet or a signalling one.
    """
    pytest.importorskip("ml_dtypes")
    bits = torch.full((items,), nan, dtype=torch.int16)
    x = torch._neg_view(bits.view(getattr(torch, dtype)))
    copied, host = xbridge.to_backend(x, "torch", copy=True), xbridge.to_numpy(x)
    expected = bits.numpy() ^ np.int16(-(2**15))
    assert copied.view(torch.int16).tolist() == expected.tolist()
    assert xbridge.asarray([x, x]).view(torch.int16).tolist() == [expected.tolist()] * 2
    assert host.view("i2").tolist() == expected.tolist()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_materialize__conjugates_nan_of_complex32_bit_for_bit() -> None:
    """A pending conjugate flips the sign of the imaginary part alone: in a copy and in a stack."""
    bits = torch.tensor([[0x7C05, 0x7C05], [0x3C00, 0x7E05]], dtype=torch.int16)
    x = torch.view_as_complex(bits.view(torch.float16)).conj()
    expected = (bits.numpy() ^ np.array([0, -(2**15)], "i2")).tolist()
    copied, stacked = xbridge.to_backend(x, "torch", copy=True), xbridge.asarray([x, x])
    assert torch.view_as_real(copied).view(torch.int16).tolist() == expected
    assert torch.view_as_real(stacked).view(torch.int16).tolist() == [expected] * 2


@pytest.mark.parametrize("items", [1, 8, 100])
def test_materialize__keeps_the_sign_of_zero_where_conjugate_and_negative_are_pending(items: int) -> None:
    """The negative of a conjugate flips the sign of the real part alone: in a copy, in a stack, in NumPy."""
    plain = torch.zeros(items, dtype=torch.complex64)
    x = torch._neg_view(plain.conj())
    copied, host = xbridge.to_backend(x, "torch", copy=True), xbridge.to_numpy(x)
    stacked = xbridge.asarray([plain, x])[1]
    for made in (copied.numpy(), host, stacked.numpy()):
        assert np.signbit(made.real).all()
        assert not np.signbit(made.imag).any()


def test_is_tracing__releases_no_reference_of_another() -> None:
    """To ask whether a compiler traces leaves None as it is, of which Python 3.11 counts the references."""
    backend = get("torch")
    before = sys.getrefcount(None)
    for _ in range(1000):
        backend.is_tracing()
    assert sys.getrefcount(None) > before - 500


def test_resolve_device__cpu_index_is_ignored() -> None:
    """torch has one CPU device, whatever index another library gives it."""
    assert get("torch").resolve_device(CPU, xbridge.Device("cpu:1")) == CPU


def test_resolve_device__missing_accelerator_lists_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for a GPU that does not exist lists the devices that do."""
    import xbridge.backends.torch as module
    from xbridge.backends.torch import _devices

    monkeypatch.setattr(_devices, "accelerators", tuple)
    monkeypatch.setattr(module, "devices", lambda: (CPU, xbridge.Device("npu:0")))
    with pytest.raises(xbridge.DeviceError) as caught:
        get("torch").resolve_device(xbridge.Device("gpu"), CPU)
    assert caught.value.reason == "torch has no device gpu here, only cpu, npu:0"


def test_from_dlpack__torch_makes_the_device_current(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch imports and exports with the device of the memory as the current one."""
    from xbridge.backends.torch import _devices

    current: list[object] = [0]

    @contextmanager
    def device(index: object) -> Iterator[None]:
        current.append(index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    seen: list[object] = []
    monkeypatch.setattr(torch, "from_dlpack", lambda shown: seen.append(current[-1]))
    backend: Any = get("torch")
    for kind in (2, 10, 13, 1):
        backend.from_dlpack(Exporter(__dlpack__=None, __dlpack_device__=lambda kind=kind: (kind, 3)))
    assert seen == [3, 3, 3, 0]
    for place, number in (("cuda:2", 2), ("cpu", 0), ("meta", 0)):
        with _devices.make_current(torch.device(place)):
            assert current[-1] == number
        assert current == [0]
    t = torch.ones(2)
    shown = backend.to_dlpack(t)
    assert shown.__dlpack_device__() == (1, 0)
    monkeypatch.undo()
    back = torch.from_dlpack(shown)
    back[0] = 5
    assert t.tolist() == [5.0, 1.0]


def test_follows__every_tensor_while_a_compiler_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that traces follows every tensor."""
    follows: Any = get("torch").follows
    assert not follows(torch.ones(2))
    monkeypatch.setattr("xbridge.backends.torch._is_traced", lambda: True)
    assert follows(torch.ones(2))
