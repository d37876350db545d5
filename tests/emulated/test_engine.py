"""Large arrays and packs of small ones arrive bit by bit, whatever their dtype, layout and stream."""

from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from emulated.engine import SIZES, use_sizes, use_small_buffers, watch_packs
from emulated.there import DEVICE, KIND, PACES, api, paced
from inside import get_backend
from torch.autograd import forward_ad
from torch_modes import Passes

import xbridge
from xbridge.backends.torch import _transfer
from xbridge.backends.torch._transfer import large, packs, pinned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType


transfers: Any = _transfer.transfers
PATIENCE = 60.0


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Buffers so small that every array is large."""
    return use_small_buffers(monkeypatch)


@pytest.fixture(params=PACES.values(), ids=list(PACES))
def pace(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is complete when the call returns is so at every pace."""
    with paced(request.param):
        yield


at_every_pace = pytest.mark.usefixtures("pace")


def bits(x: torch.Tensor) -> bytes:
    """The bytes of its elements in C order, by torch's own way to the host."""
    flat = x.cpu().flatten()
    return flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""


def numbered(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Bytes that count, below what would be special, as elements of a dtype."""
    size = dtype.itemsize * int(np.prod(shape))
    raw = (torch.arange(size) * 7 % 2 if dtype is torch.bool else torch.arange(size) * 7 % 59).to(torch.uint8)
    return raw.view(dtype).reshape(shape)


DTYPES = sorted(pinned.ITEMS, key=str)
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "in one piece": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "a view that begins later": lambda x: x[1:],
    "every second element": lambda x: x[:, ::2, ::3],
    "one row repeated": lambda x: x[:1].expand(5, *x.shape[1:]),
    "channels last": lambda x: x[None].to(memory_format=torch.channels_last),
    "windows that overlap": lambda x: x.flatten()[:40].unfold(0, 8, 4),
    "a single element": lambda x: x[0, 0, 0],
    "an axis of one": lambda x: x[:, :1].transpose(0, 1),
    "rows longer than a buffer": lambda x: x.reshape(3, -1).repeat(1, 3)[:, 1:],
    "nothing": lambda x: x[:0],
}


@at_every_pace
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_to_device__keeps_the_bits_of_any_dtype(dtype: torch.dtype) -> None:
    """A large tensor of any dtype arrives bit by bit, in both directions."""
    x = numbered(dtype, 3, 7, 9)

    there = xbridge.to_backend(x, "torch", device=KIND)
    back = xbridge.to_backend(there, "torch", device="cpu")

    assert there.device == torch.device(DEVICE)
    assert there.dtype == back.dtype == dtype
    assert bits(there) == bits(back) == bits(x)


@at_every_pace
@pytest.mark.parametrize("lay", LAYOUTS.values(), ids=LAYOUTS)
def test_to_device__lays_out_as_torch_does(lay: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A large tensor of any layout gets the strides that torch's own move gives."""
    x = lay(numbered(torch.float32, 3, 7, 9))
    y = lay(numbered(torch.float32, 3, 7, 9).to(KIND))

    there = xbridge.to_backend(x, "torch", device=KIND)
    back = xbridge.to_backend(y, "torch", device="cpu")

    assert there.stride() == x.to(KIND).stride()
    assert back.stride() == y.to("cpu").stride()
    assert bits(there) == bits(back) == bits(x)


@at_every_pace
def test_to_device__works_in_inference_mode() -> None:
    """A tensor made in inference mode is moved, and stays an inference tensor."""
    with torch.inference_mode():
        x = numbered(torch.int32, 50)
        there = xbridge.to_backend(x, "torch", device=KIND) + 1
        back = xbridge.to_backend(there, "torch", device="cpu")

    assert there.is_inference()
    assert (back == x + 1).all()


def test_to_device_many__results_are_not_views() -> None:
    """Tensors that arrived in one pack are no views, so autograd tracks each alone."""
    there = xbridge.to_backend(numbered(torch.int32, 50), "torch", device=KIND)
    packed = transfers.to_device_many([torch.ones(3), torch.ones(4)], xbridge.Device(DEVICE))

    assert not there._is_view()
    assert not any(x._is_view() for x in packed)
    kept = packed[0].requires_grad_() ** 2
    packed[1].add_(1)  # which must not look like a change of what the graph has saved
    kept.sum().backward()
    assert packed[0].grad is not None
    assert packed[0].grad.tolist() == [2, 2, 2]


# -- the plain way ---------------------------------------------------------------------------------


@pytest.fixture
def no_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine without buffers."""
    for module in (large, packs):
        monkeypatch.setattr(module, "pin_buffer", None)


@pytest.mark.usefixtures("no_staging")
def test_to_device__leaves_special_tensors_to_torch(engine: ModuleType) -> None:
    """Leaves, pinned and empty tensors are moved by torch, without a buffer."""
    leaf = torch.ones(50, requires_grad=True)
    pinned = torch.ones(50).pin_memory()
    for x in (leaf, pinned, torch.ones(0)):
        there = engine.to_device(x, xbridge.Device(DEVICE))
        assert there.device == torch.device(DEVICE)
        assert there.cpu().eq(1).all()
    for x in (leaf, torch.ones(0)):
        (there,) = engine.transfers.to_device_many([x], xbridge.Device(DEVICE))
        assert there.requires_grad is x.requires_grad


class Marked(torch.Tensor):
    """A tensor that means more than its bytes."""


@pytest.mark.usefixtures("no_staging")
def test_to_device__leaves_subclasses_and_modes_to_torch(engine: ModuleType) -> None:
    """Subclasses, and calls inside a transform or a mode, are moved by torch."""
    marked = torch.ones(50).as_subclass(Marked)
    mapped = torch.func.vmap(lambda x: engine.to_device(x, xbridge.Device(DEVICE)))(torch.ones(2, 50))
    with Passes():  # type: ignore[no-untyped-call] # theirs
        watched = engine.to_device(torch.ones(50), xbridge.Device(DEVICE))

    assert type(engine.to_device(marked, xbridge.Device(DEVICE))) is Marked
    assert mapped.shape == (2, 50)
    assert mapped.eq(1).all().item()
    assert watched.eq(1).all().item()


@pytest.mark.usefixtures("no_staging")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("together", [False, True])
def test_to_device__keeps_a_tangent(together: bool) -> None:
    """The tangent of a dual tensor is moved along with it."""
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.ones(50), torch.full((50,), 2.0))  # type: ignore[no-untyped-call]
        if together:
            there, _ = transfers.to_device_many([x, x], xbridge.Device(DEVICE))
        else:
            there = _transfer.to_device(x, xbridge.Device(DEVICE))
        value, tangent = forward_ad.unpack_dual(there)  # type: ignore[no-untyped-call]

    assert value.cpu().tolist() == [1.0] * 50
    assert tangent.cpu().tolist() == [2.0] * 50


@pytest.mark.parametrize("default", ["meta", KIND])
@pytest.mark.parametrize("n", [3, 50])
def test_to_device__ignores_the_default_device(default: str, n: int) -> None:
    """A default device of torch changes no result, alone or in a pack."""
    xs = [torch.arange(n) + i for i in range(3)] + [torch.ones(2, n, 3).transpose(0, 2)]
    with torch.device(default):
        there = transfers.to_device_many(xs, xbridge.Device(DEVICE))
        back = transfers.to_device_many(there, xbridge.Device("cpu"))
        alone = [_transfer.to_device(_transfer.to_device(x, DEVICE), "cpu") for x in xs]  # type: ignore[arg-type]

    for x, *others in zip(xs, there, back, alone, strict=True):
        assert [y.device for y in others] == [torch.device(DEVICE), *[torch.device("cpu")] * 2]
        assert all(bits(y) == bits(x) and y.stride() == x.stride() for y in others)


@pytest.mark.usefixtures("no_staging")
def test_to_device__leaves_zero_tensors_to_torch(engine: ModuleType) -> None:
    """A zero tensor without memory, as autograd makes it, is moved by torch."""
    zeros = torch._efficientzerotensor((50,))  # what autograd makes of no gradient

    for x in (
        engine.to_device(zeros, xbridge.Device(DEVICE)),
        *engine.transfers.to_device_many([zeros], xbridge.Device(DEVICE)),
    ):
        assert x.device == torch.device(DEVICE)
        assert x.cpu().eq(0).all().item()


@pytest.mark.parametrize("transform", [torch.func.grad, lambda fn: lambda x: torch.func.vjp(fn, x)])
def test_to_device__untransformed_tensor_in_a_transform(transform: Any) -> None:
    """A tensor that a transform does not track is moved by torch while one runs."""
    given = [torch.ones(50), torch.ones(50)]

    def loss(x: torch.Tensor) -> torch.Tensor:
        one = xbridge.to_backend(given[0], "torch", device=KIND).cpu()
        packed, _ = transfers.to_device_many(given, xbridge.Device(DEVICE))
        total: torch.Tensor = (x * one * packed.cpu()).sum()
        return total

    transform(loss)(torch.ones(50))


@pytest.mark.usefixtures("no_staging")
def test_to_device__stages_nothing_on_one_side(engine: ModuleType) -> None:
    """A move within the host or within the device uses no buffer."""
    x = torch.ones(50)

    assert engine.to_device(x, xbridge.Device("cpu")) is x
    assert len(engine.transfers.to_device_many([x.to(KIND)] * 2, xbridge.Device(DEVICE))) == 2


# -- the buffers -----------------------------------------------------------------------------------


PIECES = {
    "two for each buffer": (128, [32] * 4),
    "none larger than half a buffer": (2048, [128] * 16),
    "none too small": (16, [8, 8]),
    "of any size": (100, [32, 32, 32, 4]),
}


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The bytes of the pieces of each array that moves through buffers from now on."""
    found: list[list[int]] = []
    share = large._share

    def watched(copy: Any, pieces: list[large.Piece], place: torch.device) -> None:
        found.append([there.numel() for _, there in pieces])
        share(copy, pieces, place)

    monkeypatch.setattr(large, "_share", watched)
    return found


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(("nbytes", "parts"), PIECES.values(), ids=PIECES)
def test_staging__divides_a_large_tensor_among_buffers(
    nbytes: int,
    parts: list[int],
    inference: bool,
    shared: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large tensor is divided into the same pieces in both directions."""
    monkeypatch.setattr(large, "PAGE", 8)
    use_sizes(monkeypatch, SIZES._replace(chunk=256))
    with torch.inference_mode(inference):
        here = torch.arange(nbytes, dtype=torch.uint8)
        back = _transfer.to_device(_transfer.to_device(here, xbridge.Device(DEVICE)), xbridge.Device("cpu"))

    assert shared == [parts, parts]
    assert bits(back) == bits(here)


def test_staging__reuses_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads help to copy three buffers, and the next array starts no other thread."""
    use_sizes(monkeypatch, SIZES._replace(buffers=3))
    started = []
    start = threading.Thread.start

    def watched(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", watched)
    for n in range(4):
        there = xbridge.to_backend(np.arange(100) + n, "torch", device=KIND)
        assert there.tolist() == list(range(n, n + 100))
    assert {name.partition("_")[0] for name in started} == {"xbridge-copy"}
    assert len(started) <= 2


def test_streams_to_device__starts_at_the_least_size(
    shared: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buffers are used from the least size on, and not below it."""
    use_sizes(monkeypatch, SIZES._replace(buffers=1, least=48))
    for n in (5, 6, 7):
        x = torch.arange(n)
        there = _transfer.to_device(x, xbridge.Device(DEVICE))
        assert transfers.streams_to_device(x.nbytes, xbridge.Device(DEVICE)) is (n > 5)
        assert bits(_transfer.to_device(there, xbridge.Device("cpu"))) == bits(x)

    assert list(map(sum, shared)) == [48, 48, 56, 56]


def test_staging__casts_a_memmap_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapped file is cast piece by piece, in little memory."""
    use_sizes(monkeypatch, SIZES._replace(chunk=1 << 14, buffers=2, least=1))
    np.arange(1e5).tofile(tmp_path / "numbers")
    mapped = np.memmap(tmp_path / "numbers", dtype=np.float64, mode="r")
    xbridge.to_backend(mapped, "torch", device=KIND, dtype="float32")  # its buffers are made

    tracemalloc.start()
    there = xbridge.to_backend(mapped, "torch", device=KIND, dtype="float32")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert there.dtype == torch.float32
    assert (there.cpu().numpy() == np.arange(1e5, dtype="float32")).all()
    assert most < there.nbytes // 2


@at_every_pace
def test_pinned_buffers__are_shared_by_threads() -> None:
    """Several threads transfer at once with one set of buffers."""

    def there_and_back(i: int) -> bool:
        a = np.arange(100.0) + i
        return bool((xbridge.to_numpy(xbridge.to_backend(a, "torch", device=KIND)) == a).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(there_and_back, range(12)))


def fail(*_: object) -> None:
    """Raise as torch does for a device that fails."""
    raise RuntimeError("the device failed")


FAULTS = [(large, "plain_copy"), (api.Event, "synchronize"), (api.Stream, "synchronize"), (api, "Event")]


@pytest.mark.parametrize("at", FAULTS, ids=str)
def test_staging__next_array_arrives_after_a_failure(
    at: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in any thread is raised, and the next array moves as if nothing had happened."""
    with monkeypatch.context() as patch:
        patch.setattr(*at, fail)
        with pytest.raises(xbridge.DeviceError, match="the device failed"):
            xbridge.to_backend(np.ones(100), "torch", device=KIND)

    assert xbridge.to_backend(np.ones(100), "torch", device=KIND).sum().item() == 100


def test_to_backend__out_of_memory_is_torchs_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own error for a lack of memory reaches the caller unchanged."""
    error = torch.OutOfMemoryError("out of memory")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(large, "_fill", fail)
    for convert in (xbridge.to_backend, lambda *args, **at: xbridge.transfer(*args, **at).result()):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            convert(np.ones(100), "torch", device=KIND)
        assert caught.value is error


def test_staging__caller_works_alone_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, the calling thread does the whole transfer."""
    use_sizes(monkeypatch, SIZES._replace(buffers=4))
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def refused(thread: threading.Thread) -> None:
        if started:
            message = "can't start new thread"
            raise RuntimeError(message)
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    for _ in range(2):  # with one other thread instead of three
        assert xbridge.to_backend(np.arange(100), "torch", device=KIND).tolist() == list(range(100))
    use_sizes(monkeypatch, SIZES)  # and other threads, of which none can be started
    assert xbridge.to_backend(np.arange(100), "torch", device=KIND).tolist() == list(range(100))


def test_staging__error_of_another_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error in any thread, no other piece is begun, and the error is raised."""
    fill, failed = large.plain_copy, threading.Event()
    home = threading.current_thread()

    def failing_elsewhere(goal: np.ndarray, host: np.ndarray) -> None:
        if threading.current_thread() is not home:
            failed.set()
            raise ZeroDivisionError
        assert failed.wait(PATIENCE)
        fill(goal, host)

    with monkeypatch.context() as patch:
        patch.setattr(large, "plain_copy", failing_elsewhere)
        with pytest.raises(xbridge.DeviceError, match="ZeroDivisionError"):
            xbridge.to_backend(np.ones(100), "torch", device=KIND, copy=True)  # planned, so tried once
    assert xbridge.to_backend(np.ones(100), "torch", device=KIND).sum().item() == 100


# -- packs -----------------------------------------------------------------------------------------


@at_every_pace
def test_to_device_many__aligns_tensors_in_a_pack(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tensors of a pack are laid where each could have been allocated alone. Others keep their layout."""
    use_sizes(monkeypatch, SIZES._replace(chunk=1 << 14, least=1 << 20))
    xs = [numbered(dtype, 2, 3) for dtype in DTYPES] + [torch.ones(1), torch.ones(3, 2).t()]

    there = engine.transfers.to_device_many(xs, xbridge.Device(DEVICE))
    back = engine.transfers.to_device_many([x.clone() for x in there], xbridge.Device("cpu"))

    for x, y, z in zip(xs, there, back, strict=True):
        assert bits(x) == bits(y) == bits(z)
        assert (y.dtype, y.shape, z.dtype, z.shape) == (x.dtype, x.shape) * 2
        assert y.stride() == z.stride() == x.to(KIND).stride()
    assert all(y.storage_offset() * y.itemsize % 256 == 0 for y in there)
    assert len({y.untyped_storage().data_ptr() for y in there[:-1]}) == 1


def test_to_device_many__is_one_copy(engine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack is moved in a single copy, in both directions."""
    if KIND == "cuda":
        pytest.skip("the pretend device counts its copies")
    use_sizes(monkeypatch, SIZES._replace(chunk=4096, buffers=1, least=1 << 20))
    xs = [torch.full((3,), i, dtype=dtype) for i in range(4) for dtype in (torch.float32, torch.int64)]
    copies = []
    copy = api.Stream.copy

    def counting(stream: Any, run: Callable[[], object]) -> None:
        copies.append(run)
        copy(stream, run)

    monkeypatch.setattr(api.Stream, "copy", counting)

    there = engine.transfers.to_device_many(xs, xbridge.Device(DEVICE))
    assert len(copies) == 1
    back = engine.transfers.to_device_many(there, xbridge.Device("cpu"))
    assert len(copies) == 2
    assert [x.tolist() for x in back] == [x.tolist() for x in xs]


def test_to_device_many__host_results_have_their_own_storage(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the host, no tensor of a pack reaches into the memory of another."""
    use_sizes(monkeypatch, SIZES._replace(chunk=4096, buffers=1, least=1 << 20))

    back = engine.transfers.to_device_many(
        [torch.ones(3, device=KIND), torch.ones(3, device=KIND)], xbridge.Device("cpu")
    )

    assert [x.untyped_storage().nbytes() for x in back] == [12, 12]
    assert not any(x._is_view() for x in back)
    with pytest.raises(RuntimeError, match="not resizable"):
        back[0].resize_(100)


def test_transfer__packs_small_arrays_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small arrays of a batch are moved together and large ones alone, with a cast or without."""
    use_sizes(monkeypatch, SIZES._replace(chunk=1 << 16, buffers=2, least=1 << 18))
    seen = watch_packs(monkeypatch)
    large = np.zeros(1 << 16)
    batch = [large, np.arange(4), np.arange(4.0), large + 1, np.arange(4, dtype="f2"), np.ones(3)]

    for dtype in (None, "float32"):
        there = xbridge.transfer(batch, "torch", device=KIND, dtype=dtype).result()

        assert [x.dtype for x in there] == [getattr(torch, dtype or a.dtype.name) for a in batch]
        assert all(x.device == torch.device(DEVICE) for x in there)
        assert [x.tolist() for x in there] == [a.tolist() for a in batch]
    assert seen == [4, 4]


def test_transfer__packed_array_equals_a_single_one() -> None:
    """An array in a pack arrives as it would alone, however it differs from the first one."""
    first = np.arange(6.0)
    read_only = np.arange(6.0) + 1
    read_only.flags.writeable = False
    followers = [
        read_only,
        np.arange(6.0)[::-1],
        np.arange(12.0)[::2],
        np.arange(6.0).reshape(2, 3).T,
        np.broadcast_to(np.float64(3), (2, 2)),
        np.arange(6.0).astype(">f8"),
        np.zeros((0, 3)),
        np.array(2.5),
        np.ones(6, np.float32),
        torch.arange(6.0, dtype=torch.float64),
    ]

    there = xbridge.transfer([first, *followers], "torch", device=KIND).result()

    for x, y in zip([first, *followers], there, strict=True):
        alone = xbridge.to_backend(x, "torch", device=KIND)
        assert (y.dtype, y.shape, y.stride(), y.device) == (
            alone.dtype,
            alone.shape,
            alone.stride(),
            alone.device,
        )
        assert bits(y) == bits(alone)


def test_transfer__failed_pack_is_moved_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a pack fails, its arrays are moved one by one, and an error names one of them."""

    def failing(xs: list[torch.Tensor], device: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(
        get_backend("torch").transfers, "send_many", lambda hosts, device: [None] * len(hosts)
    )
    monkeypatch.setattr(get_backend("torch").transfers, "begin_send", lambda hosts, device: None)
    monkeypatch.setattr(get_backend("torch").transfers, "to_device_many", failing)

    there = xbridge.transfer([np.ones(2), np.ones(3)], "torch", device=KIND, copy=True).result()

    assert [x.tolist() for x in there] == [[1, 1], [1, 1, 1]]
    monkeypatch.setattr(get_backend("torch"), "to_device", failing)
    with pytest.raises(xbridge.DeviceError, match=r"^at tree\[0\]: .*out of memory"):
        xbridge.transfer([np.ones(2), np.ones(3)], "torch", device=KIND, copy=True).result()


def test_transfer__gradients_flow() -> None:
    """Gradients flow back through a transfer of several tensors."""
    w = [torch.ones(3, requires_grad=True), torch.ones(50, requires_grad=True)]

    there = xbridge.transfer(w, "torch", device=KIND, grad="keep").result()
    sum((x * 2).sum() for x in there).backward()

    assert all(x.grad is not None and x.grad.eq(2).all() for x in w)


def test_transfer__refuses_freed_storage() -> None:
    """A tensor whose storage was freed is refused in a batch too."""
    freed = torch.ones(5)
    freed.untyped_storage().resize_(0)

    with pytest.raises(xbridge.UnsupportedArrayError, match="freed"):
        xbridge.transfer([torch.ones(5), freed], "torch", device=KIND).result()


def test_fetch_many__declines_tensors_beyond_their_storage() -> None:
    """A tensor that reaches beyond its storage is left to a plan, which refuses it."""
    whole, freed, shrunk = torch.ones(5), torch.ones(5), torch.ones(9)[4:]
    freed.untyped_storage().resize_(0)
    shrunk.untyped_storage().resize_(32)
    batch = packs._ordinary_tensors([freed, whole, shrunk, whole[1:]], torch.device("cpu"))
    assert batch.at == [1, 3]


# -- the setting -----------------------------------------------------------------------------------


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], pinned.Sizes]:
    """What a value of the setting means."""

    def read(said: str) -> pinned.Sizes:
        monkeypatch.setenv(pinned.SETTING, said)
        monkeypatch.setattr(pinned, "_sizes", None)
        return pinned.sizes()

    return read


@pytest.mark.parametrize("mebibytes", [1, 3, 64, 100])
def test_pinned_mib__limits_pinned_memory(mebibytes: int, setting: Callable[[str], pinned.Sizes]) -> None:
    """No more memory is pinned than the setting allows."""
    chunk, buffers, *_ = setting(str(mebibytes))

    assert chunk.bit_count() == 1
    assert mebibytes / 2 < chunk * buffers / 2**20 <= mebibytes


@pytest.mark.usefixtures("no_staging")
def test_pinned_mib__zero_stages_nothing(
    setting: Callable[[str], pinned.Sizes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the setting at zero, no buffer is used."""
    use_sizes(monkeypatch, setting("0"))

    there = transfers.to_device_many([torch.ones(3), torch.ones(2)], xbridge.Device(DEVICE))
    assert [x.tolist() for x in there] == [[1, 1, 1], [1, 1]]
    assert xbridge.to_numpy(xbridge.to_backend(np.ones(100), "torch", device=KIND)).sum() == 100


@pytest.mark.parametrize("said", ["", " ", " 64 "])
def test_pinned_mib__ignores_spaces(said: str, setting: Callable[[str], pinned.Sizes]) -> None:
    """Spaces around the number are ignored, and an empty setting means the default."""
    assert setting(said) == setting("64")


def test_pin_buffer__error_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory cannot be pinned, the error has its size, torch's reason and the setting."""
    empty = torch.empty

    def failing(*args: Any, **options: Any) -> torch.Tensor:
        if options.get("pin_memory"):
            message = "no memory is left\nto pin\nat all"
            raise RuntimeError(message)
        return empty(*args, **options)

    monkeypatch.setattr(torch, "empty", failing)
    use_sizes(monkeypatch, SIZES._replace(chunk=3 << 20))
    with pytest.raises(xbridge.DeviceError) as failure:
        _transfer.to_device(torch.ones(3), xbridge.Device(DEVICE))

    assert str(failure.value) == (
        "cannot pin 3 MiB: no memory is left; try a smaller XBRIDGE_PINNED_MIB, or XBRIDGE_PINNED_MIB=0"
    )


@pytest.mark.parametrize(("processors", "buffers"), [(None, 1), (1, 1), (6, 6), (8, 8), (100, 8)])
def test_pinned_mib__one_buffer_for_each_processor(
    processors: int | None,
    buffers: int,
    setting: Callable[[str], pinned.Sizes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each processor has a buffer, up to eight of them."""
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    found = setting("64")

    assert found.buffers == buffers
    assert 32 << 20 < found.chunk * buffers <= 64 << 20


@pytest.mark.parametrize("said", ["much", "-1", "1.5"])
def test_pinned_mib__refuses_what_is_not_a_number(said: str, setting: Callable[[str], object]) -> None:
    """A setting that is not a whole number is refused with an example."""
    with pytest.raises(xbridge.OptionError) as failure:
        setting(said)

    assert str(failure.value) == (
        f"cannot read XBRIDGE_PINNED_MIB={said!r}: it is a whole number of MiB for each device; "
        "try XBRIDGE_PINNED_MIB=64"
    )
