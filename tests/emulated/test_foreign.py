"""Large arrays of other libraries through torch's buffers, as tensors over the memory of a stand-in.

Torch has no DLPack for the emulated accelerator, so the stand-in shows its tensor itself.
"""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from emulated.engine import SIZES, use_sizes, use_small_buffers
from emulated.there import DEVICE, KIND, PACES, api, paced
from inside import native_dtype
from torch_modes import Passes

import xbridge
from xbridge._host import staging
from xbridge.backends.torch import _foreign, _staging, _transfer

if TYPE_CHECKING:
    from collections.abc import Callable

PLACE = xbridge.Device(DEVICE)
SIZE = 200


def shown_as(x: torch.Tensor) -> Any:
    """An array of another library, in memory that torch can take."""
    return SimpleNamespace(x=x)


def refuse(*_: object) -> Any:
    """Fail the test if the library's own way is used."""
    pytest.fail("the plain way was used")


@pytest.fixture(autouse=True)
def buffers_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers of a few bytes, which are tried before the library's own way."""
    use_small_buffers(monkeypatch)
    monkeypatch.setattr(_staging, "LARGE", 1)
    monkeypatch.setattr(_foreign, "from_dlpack", lambda shown: shown.x)


def host_of(dtype: str = "float64") -> Any:
    """Bytes that count, as numbers of a dtype."""
    raw = np.arange(SIZE * 16) % 2 if dtype == "bool" else np.arange(SIZE * 16) * 7 % 59
    return raw.astype(np.uint8).view(native_dtype(dtype))[:SIZE].reshape(4, -1)


DTYPES = ["bool", "uint16", "float16", "int64", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_foreign__array_is_complete_on_return(dtype: str, pace: float | None) -> None:
    """All bytes have arrived when the call returns, for any stream, and the source may be written."""
    given = host_of(dtype)
    with paced(pace):
        memory = torch.empty(given.shape, dtype=getattr(torch, dtype), device=KIND)
        api.synchronize()
        source = given.copy()
        made = _foreign.send("there", source, PLACE, lambda: (memory, shown_as(memory)), refuse)
        source[...] = 0
        assert made is memory
        with api.stream(api.Stream()):
            assert made.cpu().numpy().tobytes() == given.tobytes()
            back = _foreign.fetch("back", shown_as(made), PLACE, given.dtype, refuse)
    assert (back.dtype, back.shape, back.tobytes()) == (given.dtype, given.shape, given.tobytes())
    assert back.flags.writeable


def test_fetch__keeps_dtypes_of_other_packages() -> None:
    """A dtype that NumPy has from another package comes back as that."""
    pytest.importorskip("ml_dtypes")
    x = torch.arange(SIZE, dtype=torch.bfloat16).to(KIND)
    back = _foreign.fetch("back", shown_as(x), PLACE, native_dtype("bfloat16"), refuse)
    assert back.dtype == native_dtype("bfloat16")
    assert back.astype("f4").tolist() == x.cpu().float().tolist()


def test_fetch__keeps_no_array_after_the_call() -> None:
    """Neither the tensor over an array nor the array is alive when its result is there."""
    x = torch.arange(float(SIZE), device=KIND)
    kept = weakref.ref(x)
    back = _foreign.fetch("back", shown_as(x), PLACE, np.dtype("f4"), refuse)
    del x
    assert kept() is None
    assert back.tolist() == [*range(SIZE)]


def test_foreign__uses_the_faster_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways are tried once, and then the faster one is used, for each library and direction."""
    use_sizes(monkeypatch, SIZES._replace(buffers=1))
    now, used = [0.0], []
    monkeypatch.setattr(_staging, "perf_counter", lambda: now[0])
    x, given = torch.arange(float(SIZE), device=KIND), np.arange(SIZE, dtype="f4")
    share = _staging.Crew._share

    def staged(*args: Any) -> None:
        used.append("b")
        now[0] += 3.0
        share(*args)

    def plain() -> Any:
        used.append("p")
        now[0] += 1.0
        return given

    monkeypatch.setattr(_staging.Crew, "_share", staged)
    for way in ("one", "other"):
        for _ in range(4):
            assert _foreign.fetch(way, shown_as(x), PLACE, given.dtype, plain).tolist() == given.tolist()
    for _ in range(3):
        _foreign.send("there", given, PLACE, lambda: (x, shown_as(x)), plain)
    pinning = "bbpp"  # the first call pins buffers, so it does not count
    assert "".join(used) == pinning + "bppp" + "bpp"


def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "is_current_stream_capturing", lambda: True, raising=False)


def not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "is_initialized", lambda: False)


def too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    use_sizes(monkeypatch, SIZES._replace(least=1 << 20))


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_foreign, "from_dlpack", lambda shown: shown.x.cpu())


def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(shown: object) -> None:
        raise BufferError

    monkeypatch.setattr(_foreign, "from_dlpack", fail)


@pytest.mark.parametrize("make", [captured, not_started, too_small, elsewhere, refused])
def test_foreign__library_moves_what_torch_cannot(
    make: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a capture, before torch has started the device, below a size, or if torch refuses the memory.

    So it does if torch finds the memory on another device than the library.
    """
    x, given = torch.arange(float(SIZE), device=KIND), np.arange(SIZE, dtype="f4")
    make(monkeypatch)
    monkeypatch.setattr(_staging.Crew, "_share", refuse)
    assert _foreign.fetch("back", shown_as(x), PLACE, given.dtype, lambda: given) is given
    made: Any = _foreign.send("there", given, PLACE, lambda: (x, shown_as(x)), lambda: "plain")
    assert made == "plain"


def test_foreign__library_moves_other_dtypes_modes_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it does in a mode of torch, to another kind of device, and with a byte order that torch lacks."""
    given = np.arange(SIZE, dtype="f4")
    monkeypatch.setattr(_staging.Crew, "_share", refuse)
    with Passes():  # type: ignore[no-untyped-call] # theirs
        assert _foreign.fetch("back", shown_as(torch.ones(SIZE)), PLACE, given.dtype, lambda: given) is given
    for device in ("cpu", "rocm:0", "tpu:0"):
        place = xbridge.Device(device)
        assert _foreign.fetch("back", shown_as(torch.ones(SIZE)), place, given.dtype, lambda: given) is given
    assert _foreign.send("there", given.astype(">f4"), PLACE, refuse, lambda: given) is given
    pending = torch.ones(SIZE, dtype=torch.complex64, device=KIND).conj()
    assert _foreign.fetch("back", shown_as(pending), PLACE, given.dtype, lambda: given) is given


def test_foreign__is_offered_by_torchs_backend() -> None:
    """The backend of torch offers its buffers when it is loaded."""
    assert staging.engine is _foreign
    assert _transfer.crew_for(torch.device(DEVICE)) is _transfer.crew_for(torch.device(DEVICE))
