"""What moves between host and accelerator arrives bit for bit, in memory of its own, where it was to go.

The device is a CUDA device if there is one, or else the emulated accelerator. Values go one way by xbridge
and the other way by torch, and memory is compared by addresses and by writes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from emulated.there import DEVICE, KIND
from hypothesis import given
from hypothesis import strategies as st
from rawmemory import bits, poke, same_bits, write
from strategies_torch import TORCH_DTYPES, tensors
from torch.autograd import forward_ad

import xbridge
from xbridge.backends import torch as torch_backend
from xbridge.testing.strategies import host_arrays, samples

COPIES = st.sampled_from([None, True])
arrays_of_the_host = host_arrays(dtypes=st.sampled_from(TORCH_DTYPES), nan="any") | tensors()
samples_there = samples("torch", devices=DEVICE)


def on_host(x: torch.Tensor) -> torch.Tensor:
    """A device tensor, brought to the host by torch."""
    return x.detach().resolve_conj().resolve_neg().cpu()


@given(arrays_of_the_host, COPIES)
def test_to_backend__upload_is_bit_exact(source: Any, copy: bool | None) -> None:
    """An array arrives on the device with its bits and its dtype."""
    there = xbridge.to_backend(source, "torch", device=KIND, copy=copy)
    assert xbridge.device_of(there) == DEVICE
    assert xbridge.dtype_of(there) == xbridge.dtype_of(source)
    assert same_bits(on_host(there), source)


@given(samples_there, st.sampled_from(["numpy", "torch"]), COPIES)
def test_to_backend__download_is_bit_exact(sample: Any, target: str, copy: bool | None) -> None:
    """An array comes back to the host with its bits and its dtype."""
    back = xbridge.to_backend(sample.array, target, device="cpu", copy=copy)
    assert xbridge.device_of(back) == "cpu"
    assert xbridge.dtype_of(back) == xbridge.dtype_of(sample.array) == sample.values.dtype.name
    assert same_bits(back, sample.values)


@given(arrays_of_the_host)
def test_to_backend__upload_does_not_alias_the_source(source: Any) -> None:
    """Writing to the source after an upload does not change the array on the device."""
    there = xbridge.to_backend(source, "torch", device=KIND)
    before = bits(source)
    poke(source)
    assert np.array_equal(bits(on_host(there)), before)


@given(samples_there)
def test_to_numpy__download_is_writable(sample: Any) -> None:
    """A downloaded array is writable and independent of the device."""
    before = bits(on_host(sample.array))
    host = xbridge.to_numpy(sample.array)
    assert host.flags.writeable
    write(host)
    assert np.array_equal(bits(on_host(sample.array)), before)


@given(arrays_of_the_host, samples_there)
def test_to_backend__copy_false_refuses_transfers(here: Any, there: Any) -> None:
    """Host and device share no memory, so `copy=False` raises in either direction."""
    for x, target, device in (
        (here, "torch", KIND),
        (there.array, "torch", "cpu"),
        (there.array, "numpy", "cpu"),
    ):
        if 0 in x.shape:
            continue
        with pytest.raises(xbridge.CopyError):
            xbridge.to_backend(x, target, device=device, copy=False)


@given(samples_there)
def test_to_backend__stays_on_its_device(sample: Any) -> None:
    """A tensor that is already on the device is returned as is."""
    assert xbridge.to_backend(sample.array, "torch") is sample.array
    assert xbridge.to_backend(sample.array, "torch", device=KIND, copy=False) is sample.array


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("tracked", [False, True], ids=["plain", "tracked"])
@pytest.mark.parametrize("pending", ["conj", "neg", "both", "negative"])
def test_materialize__complex_on_device_keeps_nan_bits(dtype: str, pending: str, tracked: bool) -> None:
    """Resolving pending operations on a device keeps the payloads and signs of NaNs."""
    real = np.dtype(dtype).type().real.dtype
    code = np.dtype(f"u{real.itemsize}")
    nans = np.full((2, 2), np.nan, real).view(code) + np.array([[1, 5], [7, 9]], code)
    there = torch.from_numpy(nans.view(dtype).copy()).to(KIND)
    flips = {"conj": [0, 1], "neg": [1], "both": [1, 0], "negative": [1, 1]}[pending]
    want = nans ^ (np.array(flips, code) << (8 * code.itemsize - 1))
    x = there.conj()
    if pending == "negative":
        x = torch._neg_view(there)
    elif pending != "conj":
        x = x.imag if pending == "neg" else torch._neg_view(x)
        want = want[:, 1:] if pending == "neg" else want
    x = x.detach().requires_grad_(tracked)
    settled = [xbridge.asarray(x, copy=True), torch_backend.materialize(x), xbridge.asarray([x, x])[0]]
    settled += [xbridge.asarray([x] * 20)[3]]
    assert all(y.requires_grad is tracked and not y.is_conj() and not y.is_neg() for y in settled)
    hosts = [xbridge.to_numpy(x), xbridge.asarray(x, device="cpu").detach().numpy()]
    for y in (*hosts, *(each.detach().cpu().numpy() for each in settled)):
        assert y.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_materialize__negative_on_device_keeps_nan_bits(dtype: str) -> None:
    """Resolving a pending negation on a device only flips sign bits, NaNs included."""
    there = torch.full((4,), float("nan"), dtype=getattr(torch, dtype))
    code = np.dtype(f"u{there.itemsize}")
    raw = there.view(getattr(torch, f"int{8 * there.itemsize}")).numpy().view(code)
    raw += np.arange(4, dtype=code)
    done = torch_backend.materialize(torch._neg_view(there.to(KIND)))

    assert not done.is_neg()
    found = done.cpu().view(getattr(torch, f"int{8 * there.itemsize}")).numpy().view(code)
    assert found.tolist() == (raw ^ code.type(1 << (8 * there.itemsize - 1))).tolist()


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_materialize__keeps_tangents_on_device() -> None:
    """A forward-mode tangent is resolved along with its tensor."""
    there = torch.tensor([1 + 2j, 3 - 1j]).to(KIND)
    with forward_ad.dual_level():
        dual: Any = forward_ad.make_dual
        x = dual(there, torch.tensor([1j, 2 + 0j]).to(KIND)).conj()
        value, tangent = forward_ad.unpack_dual(torch_backend.materialize(x))  # type: ignore[no-untyped-call]

    assert value.cpu().tolist() == [1 - 2j, 3 + 1j]
    assert tangent is not None
    assert tangent.cpu().resolve_conj().tolist() == [-1j, 2 + 0j]
