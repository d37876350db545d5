"""The backend of torch by itself: what its shortcuts take, its devices, and its rarer tensors."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from exporters import Exporter
from inside import get_backend
from torch_modes import default_dtype

import xbridge

torch = pytest.importorskip("torch")
_threads: Any = import_module("xbridge.backends.torch._threads")

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU = xbridge.Device("cpu")


def test_stack_many__needs_like_tensors() -> None:
    """Tensors of one shape inside of their storage are stacked if their dtypes promote without loss."""
    stack_many: Any = get_backend("torch").fast.stack_many
    assert stack_many([torch.ones(2), torch.zeros(2)]).tolist() == [[1, 1], [0, 0]]
    assert stack_many([torch.ones(2), torch.zeros(3)[1:]]).tolist() == [[1, 1], [0, 0]]
    assert stack_many([torch.ones(2), torch.zeros(2).double()]).dtype == torch.float64
    assert stack_many([torch.ones(2), torch.zeros(2).int()]) is None
    assert stack_many([torch.ones(2), torch.zeros(2).half()]) is None
    assert stack_many([torch.ones(2), torch.zeros(3)]) is None
    for shrunk in (torch.zeros(3)[1:], torch.zeros(4)[::2]):
        shrunk.untyped_storage().resize_(8)
        assert stack_many([shrunk, shrunk]) is None
        assert stack_many([torch.ones(2).double(), shrunk]) is None
        assert stack_many([torch.zeros(8)[:: shrunk.stride(0)][:2], shrunk]) is None


@pytest.mark.parametrize("convert", [xbridge.to_torch, lambda x: xbridge.tree.to_torch([x, x])[1]])
def test_fast_from_numpy__strides_of_one_item_do_not_count(convert: Any) -> None:
    """Arrays with any strides along an axis of one item are shared, before and after each other."""
    record = np.zeros(1, [("a", "f8"), ("b", "i4")])["a"]
    memory = np.arange(3.0)
    odd = [np.ones(1)[::-1], np.ones((1, 3))[::-1], np.ones((3, 1))[:, ::-1], record, memory[None, ::-1]]
    for x in [*odd, memory, np.ones((1, 2)), *odd, memory]:
        made = convert(x)
        assert (made.tolist(), made.shape, made.dtype) == (x.tolist(), x.shape, torch.float64)
        assert xbridge.shares_memory(made, x) is (x.base is not memory)
    frozen = np.ones((1, 2))
    frozen.flags.writeable = False
    for empty in (np.ones((0, 1))[::-1], np.zeros(0, [("a", "f8"), ("b", "i4")])["a"]):
        assert convert(empty).shape == empty.shape
    convert(frozen)[0] = 7.0
    assert frozen.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    "refused", [np.ones(2, "M8[s]"), np.zeros(2, [("a", "S0"), ("b", "f8")])["a"]], ids=str
)
def test_fast_from_numpy__declines_refused_dtypes(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array of a dtype that torch refuses is declined, the first one as well as those that follow it."""
    from_numpy: Any = get_backend("torch").fast.from_numpy
    for x in (refused, refused.copy(), refused[::-1], np.broadcast_to(refused[0], (10**11,))):
        monkeypatch.setitem(vars(import_module("xbridge.backends.torch")), "_host_prechecks", 0)
        assert from_numpy(x) is None
        assert from_numpy(x) is None
        assert from_numpy(np.ones(2)).tolist() == [1.0, 1.0]


def test_fast_resolve_to_numpy__applies_the_operation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor with a pending operation is materialized once in each call, and never if none is allowed."""
    backend, applied = vars(import_module("xbridge.backends.torch")), []

    def apply(x: Any, right: Any = backend["apply_pending"]) -> Any:
        applied.append(x)
        return right(x)

    monkeypatch.setitem(backend, "apply_pending", apply)
    x = torch.full((2, 3), 1 + 2j).conj()
    calls: list[dict[str, Any]] = [{}, {"dtype": "complex128"}, {"order": "C"}, {"writable": False}]
    for options in calls * 2:
        assert xbridge.to_numpy(x, **options).tolist() == [[1 - 2j] * 3] * 2
        assert len(applied) == 1
        applied.clear()
    xbridge.to_numpy(torch.ones(2), copy=False)
    for _ in range(2):
        with pytest.raises(xbridge.CopyError):
            xbridge.to_numpy(x, copy=False)
    assert not applied


def test_threaded__default_dtype_of_an_outer_call_comes_back() -> None:
    """A call within another one of the same thread leaves it the default dtype that it had."""
    backend: Any = get_backend("torch")
    seen = []

    def look(_: list[object]) -> list[object]:
        seen.append(backend.default_dtype("float", xbridge.Device("cpu")))
        return []

    with default_dtype("float64"):
        inner = backend.transfers.threaded(look, xbridge.Device("cpu"))
        outer = backend.transfers.threaded(
            lambda xs: [*look(xs), *inner(xs), *look(xs)], xbridge.Device("cpu")
        )
        torch.set_default_dtype(torch.float32)
        outer([])
        look([])
    assert seen == ["float64"] * 3 + ["float32"]


def test_worker_stream__is_one_in_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that ask for a stream at the same time get the same one."""
    place, made = torch.device("cpu"), []

    def make(_: object) -> object:
        made.append("a stream")
        if len(made) == 1:
            with ThreadPoolExecutor(1) as other:
                made.append(other.submit(_threads.worker_stream, place).result())
        return object()

    monkeypatch.setattr(_threads, "_worker_streams", {})
    monkeypatch.setattr(torch.cpu, "Stream", make)
    assert _threads.worker_stream(place) is made[-1]


def test_materialize__zero_tensor_stays_on_its_device() -> None:
    """A zero tensor without memory is made on the device that it names."""
    x = torch._efficientzerotensor((3,), device="meta")
    assert get_backend("torch").materialize(x).device.type == "meta"


def test_is_tracing__releases_no_reference_of_another() -> None:
    """To ask whether a compiler traces leaves None as it is, of which Python 3.11 counts the references."""
    backend = get_backend("torch")
    before = sys.getrefcount(None)
    for _ in range(1000):
        backend.is_tracing()
    assert sys.getrefcount(None) > before - 500


def test_resolve_device__cpu_index_is_ignored() -> None:
    """torch has one CPU device, whatever index another library gives it."""
    assert get_backend("torch").resolve_device(CPU, xbridge.Device("cpu:1")) == CPU


def test_resolve_device__missing_accelerator_lists_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for a GPU that does not exist lists the devices that do."""
    monkeypatch.setattr("xbridge.backends.torch.accelerators", tuple)
    monkeypatch.setattr("xbridge.backends.torch.devices", lambda: (CPU, xbridge.Device("npu:0")))
    with pytest.raises(xbridge.DeviceError) as caught:
        get_backend("torch").resolve_device(xbridge.Device("gpu"), CPU)
    assert caught.value.reason == "torch has no device gpu here, only cpu, npu:0"


def test_from_dlpack__torch_makes_the_device_current(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch imports and exports with the device of the memory as the current one."""
    current: list[object] = [0]

    @contextmanager
    def device(index: object) -> Iterator[None]:
        current.append(index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    seen: list[object] = []
    monkeypatch.setattr(torch, "from_dlpack", lambda shown: seen.append(current[-1]))
    backend: Any = get_backend("torch")
    for kind in (2, 10, 13, 1):
        backend.from_dlpack(Exporter(__dlpack__=None, __dlpack_device__=lambda kind=kind: (kind, 3)))
    assert seen == [3, 3, 3, 0]
    t = torch.ones(2)
    shown = backend.to_dlpack(t)
    assert shown.__dlpack_device__() == (1, 0)
    monkeypatch.undo()
    back = torch.from_dlpack(shown)
    back[0] = 5
    assert t.tolist() == [5.0, 1.0]
