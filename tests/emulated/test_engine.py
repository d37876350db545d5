"""Large arrays and packs of small ones arrive bit by bit, whatever their dtype, layout and stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from emulated.engine import SIZES, use_sizes, watch_packs
from emulated.there import DEVICE, KIND, api
from torch.autograd import forward_ad
from torch_modes import Passes

import xbridge
from xbridge.backends.torch import _transfer

if TYPE_CHECKING:
    from collections.abc import Callable


transfers: Any = _transfer.transfers
pytestmark = pytest.mark.usefixtures("small_buffers")
read_sizes = _transfer.sizes.__wrapped__


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


DTYPES = sorted(_transfer.ITEMS, key=str)
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
    monkeypatch.setattr(_transfer, "pin_buffer", None)


@pytest.mark.usefixtures("no_staging")
def test_to_device__leaves_special_tensors_to_torch() -> None:
    """Leaves, pinned and empty tensors are moved by torch, without a buffer."""
    leaf = torch.ones(50, requires_grad=True)
    pinned = torch.ones(50).pin_memory()
    for x in (leaf, pinned, torch.ones(0)):
        there = _transfer.to_device(x, xbridge.Device(DEVICE))
        assert there.device == torch.device(DEVICE)
        assert there.cpu().eq(1).all()
    for x in (leaf, torch.ones(0)):
        (there,) = transfers.to_device_many([x], xbridge.Device(DEVICE))
        assert there.requires_grad is x.requires_grad


class Marked(torch.Tensor):
    """A tensor that means more than its bytes."""


@pytest.mark.usefixtures("no_staging")
def test_to_device__leaves_subclasses_and_modes_to_torch() -> None:
    """Subclasses, and calls inside a transform or a mode, are moved by torch."""
    marked = torch.ones(50).as_subclass(Marked)
    mapped = torch.func.vmap(lambda x: _transfer.to_device(x, xbridge.Device(DEVICE)))(torch.ones(2, 50))
    with Passes():  # type: ignore[no-untyped-call] # theirs
        watched = _transfer.to_device(torch.ones(50), xbridge.Device(DEVICE))

    assert type(_transfer.to_device(marked, xbridge.Device(DEVICE))) is Marked
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


# -- the buffers -----------------------------------------------------------------------------------


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The bytes of the pieces of each array that moves through buffers from now on."""
    found: list[list[int]] = []
    share = _transfer._share

    def watched(move: Any, pieces: list[_transfer.Piece]) -> None:
        found.append([there.numel() for _, there in pieces])
        share(move, pieces)

    monkeypatch.setattr(_transfer, "_share", watched)
    return found


@pytest.mark.parametrize("inference", [False, True])
def test_staging__divides_a_large_tensor_among_buffers(inference: bool, shared: list[list[int]]) -> None:
    """A large tensor is divided into pieces of half a buffer, in both directions."""
    with torch.inference_mode(inference):
        here = torch.arange(100, dtype=torch.uint8)
        back = _transfer.to_device(_transfer.to_device(here, xbridge.Device(DEVICE)), xbridge.Device("cpu"))

    assert shared == [[32, 32, 32, 4]] * 2
    assert bits(back) == bits(here)


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


def fail(*_: object) -> None:
    """Raise as torch does for a device that fails."""
    raise RuntimeError("the device failed")


FAULTS = [(_transfer, "plain_copy"), (api.Event, "synchronize"), (api.Stream, "synchronize"), (api, "Event")]


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

    monkeypatch.setattr(_transfer, "_fill", fail)
    for convert in (xbridge.to_backend, lambda *args, **at: xbridge.transfer(*args, **at).result()):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            convert(np.ones(100), "torch", device=KIND)
        assert caught.value is error


# -- packs -----------------------------------------------------------------------------------------


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


def test_fetch_many__declines_tensors_beyond_their_storage() -> None:
    """A tensor that reaches beyond its storage is left to a plan, which refuses it."""
    whole, freed, shrunk = torch.ones(5), torch.ones(5), torch.ones(9)[4:]
    freed.untyped_storage().resize_(0)
    shrunk.untyped_storage().resize_(32)
    _, chosen = _transfer.choose_tensors([freed, whole, shrunk, whole[1:]], torch.device("cpu"))
    assert chosen == [1, 3]


# -- the setting -----------------------------------------------------------------------------------


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], _transfer.Sizes]:
    """What a value of the setting means."""

    def read(said: str) -> _transfer.Sizes:
        monkeypatch.setenv(_transfer.SETTING, said)
        return read_sizes()

    return read


@pytest.mark.parametrize("mebibytes", [1, 3, 64, 100])
def test_pinned_mib__limits_pinned_memory(mebibytes: int, setting: Callable[[str], _transfer.Sizes]) -> None:
    """No more memory is pinned than the setting allows."""
    chunk, buffers, *_ = setting(str(mebibytes))

    assert chunk.bit_count() == 1
    assert mebibytes / 2 < chunk * buffers / 2**20 <= mebibytes


@pytest.mark.usefixtures("no_staging")
def test_pinned_mib__zero_stages_nothing(
    setting: Callable[[str], _transfer.Sizes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the setting at zero, no buffer is used."""
    use_sizes(monkeypatch, setting("0"))

    there = transfers.to_device_many([torch.ones(3), torch.ones(2)], xbridge.Device(DEVICE))
    assert [x.tolist() for x in there] == [[1, 1, 1], [1, 1]]
    assert xbridge.to_numpy(xbridge.to_backend(np.ones(100), "torch", device=KIND)).sum() == 100


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


@pytest.mark.parametrize("said", ["much", "-1", "1.5"])
def test_pinned_mib__refuses_what_is_not_a_number(said: str, setting: Callable[[str], object]) -> None:
    """A setting that is not a whole number is refused with an example."""
    with pytest.raises(xbridge.OptionError) as failure:
        setting(said)

    assert str(failure.value) == (
        f"cannot read XBRIDGE_PINNED_MIB={said!r}: it is a whole number of MiB for each device; "
        "try XBRIDGE_PINNED_MIB=64"
    )


class Listing(Passes):
    """Lists the operators of torch."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # theirs
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_to_device_many__runs_in_a_mode_what_single_moves_run() -> None:
    """A mode, such as a counter of operators, sees no views of tensors that buffers would have moved."""
    xs, device = [torch.ones(2), torch.ones(3)], xbridge.Device(DEVICE)
    together: list[str] = []
    alone: list[str] = []
    with Listing(together):
        transfers.to_device_many(xs, device)
    with Listing(alone):
        for x in xs:
            _transfer.to_device(x, device)
    assert together == alone != []
