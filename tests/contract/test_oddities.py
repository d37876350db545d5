"""Arrays and tensors that are valid but odd: every one is converted, in values bit for bit.

The layouts of the kit's samples, which every pair of libraries converts in `test_pairs.py`, are not repeated.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rawmemory import bits, overlaps, same_bits, tensor_of, write
from torch_kinds import Plain

import xbridge

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rawmemory import Host
    from torch import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")


@pytest.fixture(autouse=True)
def every_warning() -> Iterator[None]:
    """Let torch warn each time, not once in a process; here a warning is an error."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


# -- from NumPy ----------------------------------------------------------------------------------

A = np.arange(12.0).reshape(3, 4)
A.flags.writeable = False


def beside_padding(a: Host) -> Host:
    """A copy whose strides are no multiple of an item."""
    fields = np.zeros(a.shape, [("item", a.dtype), ("padding", "u1")])
    fields["item"] = a
    return fields["item"]


SHARED: dict[str, Callable[[], Host]] = {
    "a matrix": lambda: np.matrix([[1.0, 2.0]]),
    "one element, reversed": lambda: np.ones(1)[::-1],
    "an axis of one, reversed": lambda: np.ones((3, 1))[:, ::-1],
    "a field of one record": lambda: np.ones(1, [("a", "f8"), ("b", "i1")])["a"],
    "an axis of one that takes no step": lambda: np.lib.stride_tricks.as_strided(A.copy(), (1, 3), (0, 8)),
    "odd truth values": lambda: np.array([0, 1, 2, 255], "u1").view("?"),
}

COPIED: dict[str, Callable[[], Host]] = {
    "byte-swapped and reversed": lambda: np.arange(3, dtype=">u8")[::-1],
    "byte-swapped complex, odd strides": lambda: beside_padding(np.array([1j, 2.0], ">c16")),
    "read-only ulonglong": lambda: np.broadcast_to(np.array(7, "Q"), (2,)),
    "reversed ulonglong": lambda: np.array([1, 2**64 - 1], "Q")[::-1],
    "a read-only matrix": lambda: np.matrix(np.broadcast_to(1.0, (2, 2)), copy=False),
}


@pytest.mark.parametrize("name", SHARED)
def test_to_backend__shares_unusual_arrays(name: str) -> None:
    """Unusual arrays that torch can represent are shared."""
    a = SHARED[name]()
    tensor = xbridge.to_backend(a, "torch")
    assert same_bits(tensor, a)
    write(tensor)
    assert same_bits(tensor, a)
    assert overlaps(tensor, a)
    assert not overlaps(xbridge.to_backend(a, "torch", copy=True), a)


@pytest.mark.parametrize("name", COPIED)
def test_to_backend__copies_what_torch_cannot_represent(name: str) -> None:
    """Arrays that torch cannot represent are copied, and `copy=False` raises."""
    a = COPIED[name]()
    before = bits(a)
    tensor = xbridge.to_backend(a, "torch")
    assert same_bits(tensor, a)
    write(tensor)
    assert np.array_equal(bits(a), before)
    with pytest.raises(xbridge.CopyError, match="try copy=None"):
        xbridge.to_backend(a, "torch", copy=False)


def test_to_backend__memmap_is_shared_if_writable(tmp_path: Path) -> None:
    """A memory map is shared if it is writable, and the file changes only in mode "r+"."""
    path = tmp_path / "numbers"
    path.write_bytes(A.tobytes())
    shared = np.memmap(path, "f8", "r+", shape=A.shape)
    tensor = xbridge.to_backend(shared, "torch")
    tensor[0, 0] = 7
    shared.flush()
    assert np.fromfile(path)[0] == 7
    for mode in ("r", "c"):
        a = np.memmap(path, "f8", mode, shape=A.shape)
        tensor = xbridge.to_backend(a, "torch")
        assert overlaps(tensor, a) is (mode == "c")
        tensor += 1
        assert np.fromfile(path)[0] == 7
    assert xbridge.to_backend(shared[0, 0], "torch").item() == 7


def test_to_backend__keeps_subnormals() -> None:
    """Subnormal numbers survive a copy even if torch flushes them to zero."""
    tiny = np.array([1e-310, -1e-310])
    pattern = tiny.view("u8").tolist()
    torch.set_flush_denormal(True)
    try:
        copies = [xbridge.to_backend(a, "torch", copy=True) for a in (tiny, tiny.astype(">f8"))]
        copies += [xbridge.asarray([tiny], backend="torch")[0], xbridge.asarray([1e-310, -1e-310])]
    finally:
        torch.set_flush_denormal(False)
    for made in copies:
        assert bits(made).view("u8").ravel().tolist() == pattern


# -- from torch ----------------------------------------------------------------------------------


def fresh(*shape: int, dtype: Any = torch.float32) -> Tensor:
    """Different numbers everywhere."""
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = np.random.default_rng(1).integers(0, 256, count, "u1")
    return tensor_of(raw.reshape((*shape, dtype.itemsize)), dtype)  # type: ignore[no-any-return]


WRITABLE: dict[str, Callable[[], Tensor]] = {
    "unfolded apart": lambda: fresh(6).unfold(0, 2, 2),
    "a detached parameter": lambda: torch.nn.Parameter(fresh(3)).detach(),
    "a buffer": lambda: torch.nn.Buffer(fresh(3)),
    "a plain subclass": lambda: fresh(3).as_subclass(Plain),
    "bits of another dtype": lambda: fresh(4).view(torch.int16),
    "odd truth values": lambda: torch.tensor([0, 1, 2, 255], dtype=torch.uint8).view(torch.bool),
    "a lazy clone": lambda: torch._lazy_clone(fresh(5))[1:],
}

FROZEN: dict[str, Callable[[], Tensor]] = {
    "unfolded, with an axis of one": lambda: fresh(6).unfold(0, 3, 1)[None],
    "a leaf that requires grad": lambda: fresh(3).requires_grad_(),
    "a leaf of bfloat16": lambda: fresh(3, dtype=torch.bfloat16).requires_grad_(),
    "a leaf of float8": lambda: fresh(3, dtype=torch.float8_e5m2).requires_grad_(),
    "a parameter": lambda: torch.nn.Parameter(fresh(3)),
    "a subclass of a parameter": lambda: type("Mine", (torch.nn.Parameter,), {})(fresh(3)),
    "a view of a parameter": lambda: torch.nn.Parameter(fresh(3, 4))[1:, ::2],
}

SETTLED: dict[str, Callable[[], Tensor]] = {
    "conjugate, expanded": lambda: fresh(1, dtype=torch.complex64).conj().expand(3),
    "conjugate, tracked": lambda: fresh(3, dtype=torch.complex64).requires_grad_().conj(),
    "negative, tracked": lambda: fresh(3, dtype=torch.complex64).requires_grad_().conj().imag,
    "conjugate and negative": lambda: torch._neg_view(fresh(3, dtype=torch.complex64).conj()),
}

AMBIENT = {"": nullcontext, "inference": torch.inference_mode, "no grad": torch.no_grad}


@pytest.mark.parametrize("ambient", AMBIENT)
@pytest.mark.parametrize("name", WRITABLE)
def test_to_numpy__shares_writable_tensors(name: str, ambient: str) -> None:
    """A plain tensor is shared and writable in every grad mode."""
    with AMBIENT[ambient]():
        tensor = WRITABLE[name]()
        host = xbridge.to_numpy(tensor)
    write(host)
    assert same_bits(host, tensor)
    assert overlaps(host, tensor)
    assert not overlaps(xbridge.to_numpy(tensor, copy=True), tensor)


# What is taken of a parameter in inference mode has no history, so nothing speaks against a write.
MUST_NOT = [(name, ambient) for name in FROZEN for ambient in AMBIENT]
MUST_NOT.remove(("a view of a parameter", "inference"))


@pytest.mark.parametrize(("name", "ambient"), MUST_NOT)
def test_to_numpy__shares_protected_tensors_read_only(name: str, ambient: str) -> None:
    """A tensor that must not be written is shared as a read-only array."""
    with AMBIENT[ambient]():
        tensor = FROZEN[name]()
        host = xbridge.to_numpy(tensor)
    assert same_bits(host, tensor)
    assert overlaps(host, tensor)
    assert not host.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        host.flags.writeable = True
    assert xbridge.to_numpy(tensor, copy=True).flags.writeable


@pytest.mark.parametrize("name", SETTLED)
def test_to_numpy__resolves_pending_operations(name: str) -> None:
    """Pending conjugation and negation are resolved in a copy, so `copy=False` raises."""
    tensor = SETTLED[name]()
    host = xbridge.to_numpy(tensor)
    assert host.tolist() == tensor.detach().clone().resolve_conj().resolve_neg().tolist()
    assert host.flags.writeable
    assert xbridge.to_list(tensor) == tensor.tolist()
    with pytest.raises(xbridge.CopyError, match="pending"):
        xbridge.to_numpy(tensor, copy=False)


def test_to_numpy__shared_storage_cannot_be_resized() -> None:
    """Memory that is shared can no longer be resized by either library."""
    for tensor in (fresh(9), fresh(9, dtype=torch.bfloat16), fresh(9).requires_grad_(), fresh(1).expand(9)):
        xbridge.to_numpy(tensor)
        with pytest.raises(RuntimeError, match="not resizable"):
            tensor.untyped_storage().resize_(0)
    a = np.ones(3)
    tensor = xbridge.to_backend(a, "torch")
    with pytest.raises(ValueError, match="cannot resize"):
        a.resize(10**6)
    assert tensor.tolist() == [1.0, 1.0, 1.0]
