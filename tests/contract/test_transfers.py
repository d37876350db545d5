"""Every dtype and layout crosses between host and accelerator bit for bit.

Values go one way by xbridge and the other way by torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from emulated.there import DEVICE, KIND
from rawmemory import same_bits

import xbridge
from xbridge._core.dtypes import DTYPES
from xbridge.backends import torch as torch_backend

if TYPE_CHECKING:
    from collections.abc import Callable

every_dtype = pytest.mark.parametrize("name", [name for name in DTYPES if hasattr(torch, name)])


def tensor(name: str, *shape: int) -> torch.Tensor:
    """Any bits that are values of a dtype, on the host."""
    dtype = getattr(torch, name)
    size = torch.Size(shape).numel() * dtype.itemsize
    raw = np.random.default_rng(3).integers(0, 2 if name == "bool" else 256, size, dtype="uint8")
    return torch.from_numpy(raw).view(dtype).reshape(shape)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda x: x,
    "transposed": lambda x: x.T,
    "every other": lambda x: x[:, 1::2],
    "a part": lambda x: x[1:, 1:3],
    "repeated": lambda x: x[:1].expand(3, -1),
    "0-d": lambda x: x[1, 1],
    "empty": lambda x: x[:0],
}
every_layout = pytest.mark.parametrize("lay", LAYOUTS.values(), ids=LAYOUTS)


@every_dtype
@every_layout
def test_a_tensor_arrives_bit_for_bit(name: str, lay: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = lay(tensor(name, 3, 4))

    there = xbridge.to_backend(x, "torch", device=KIND)

    assert (xbridge.device_of(there), there.dtype) == (DEVICE, x.dtype)
    assert same_bits(there.cpu(), x)


@every_dtype
@every_layout
def test_a_tensor_comes_back_bit_for_bit(name: str, lay: Callable[[torch.Tensor], torch.Tensor]) -> None:
    host = tensor(name, 3, 4)
    x = lay(host.to(KIND))

    back = xbridge.to_backend(x, "torch", device="cpu")

    assert back.dtype == host.dtype
    assert same_bits(back, lay(host))


@every_dtype
@every_layout
def test_a_numpy_array_arrives_and_comes_back_bit_for_bit(
    name: str, lay: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    host = tensor(name, 3, 4)
    array = xbridge.to_numpy(lay(host))

    there = xbridge.to_backend(array, "torch", device=KIND)
    back = xbridge.to_numpy(lay(host.to(KIND)))

    assert same_bits(there.cpu(), lay(host))
    assert back.dtype == array.dtype
    assert same_bits(back, array)


ARRAYS: dict[str, Callable[[], np.ndarray]] = {
    "reversed": lambda: np.arange(12.0).reshape(3, 4)[::-1, ::-2],
    "read-only": lambda: np.broadcast_to(np.arange(4.0), (3, 4)),
    "of foreign byte order": lambda: np.arange(4.0).astype(">f8"),
    "not aligned": lambda: np.zeros(33, "u1")[1:].view("f8"),
    "in Fortran order": lambda: np.asfortranarray(np.arange(12.0).reshape(3, 4)),
}


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
def test_an_array_that_torch_cannot_take_as_it_is_arrives(make: Callable[[], np.ndarray]) -> None:
    array = make()

    there = xbridge.to_backend(array, "torch", device=KIND)

    assert same_bits(there.cpu(), array)


@pytest.mark.parametrize("pending", [torch.conj, lambda z: z.conj().imag], ids=["conj", "neg"])
def test_what_is_pending_is_done_on_the_way(pending: Callable[[torch.Tensor], torch.Tensor]) -> None:
    z = tensor("complex64", 3, 4)

    assert same_bits(xbridge.to_numpy(pending(z.to(KIND))), pending(z))
    assert same_bits(xbridge.to_backend(pending(z), "torch", device=KIND).cpu(), pending(z))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("tracked", [False, True], ids=["plain", "tracked"])
@pytest.mark.parametrize("pending", ["conj", "neg", "both"])
def test_what_is_pending_on_a_device_keeps_the_bits_of_nan(dtype: str, pending: str, tracked: bool) -> None:
    real = np.dtype(dtype).type().real.dtype
    code = np.dtype(f"u{real.itemsize}")
    nans = np.full((2, 2), np.nan, real).view(code) + np.array([[1, 5], [7, 9]], code)
    there = torch.from_numpy(nans.view(dtype).copy()).to(KIND)
    flips = {"conj": [0, 1], "neg": [1], "both": [1, 0]}[pending]
    want = nans ^ (np.array(flips, code) << (8 * code.itemsize - 1))
    x = there.conj()
    if pending != "conj":
        x = x.imag if pending == "neg" else torch._neg_view(x)
        want = want[:, 1:] if pending == "neg" else want
    x = x.detach().requires_grad_(tracked)
    settled = [xbridge.asarray(x, copy=True), torch_backend.materialize(x), xbridge.asarray([x, x])[0]]
    settled += [xbridge.asarray([x] * 20)[3]]
    assert all(y.requires_grad is tracked and not y.is_conj() and not y.is_neg() for y in settled)
    hosts = [xbridge.to_numpy(x), xbridge.asarray(x, device="cpu").detach().numpy()]
    for y in (*hosts, *(each.detach().cpu().numpy() for each in settled)):
        assert y.tobytes() == want.tobytes()
