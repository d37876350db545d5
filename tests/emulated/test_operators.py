"""Operators and programs give on the emulated accelerator what they give on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from rawmemory import same_bits

if TYPE_CHECKING:
    from collections.abc import Callable

X = torch.tensor([[1.5, -2.0, 0.0], [4.0, float("inf"), -0.5]])
Z = torch.complex(X, X.flip(1))

ON_REALS = {
    "add": lambda x: x + x,
    "subtract from a number": lambda x: 1 - x,
    "multiply by a host scalar": lambda x: x * torch.tensor(2.5, dtype=torch.float64),
    "a host scalar is less than": lambda x: torch.tensor(1.0) < x,
    "fill by a mask with a host scalar": lambda x: x.masked_fill(x > 0, torch.tensor(2.0)),
    "a 0-d tensor and a strong number": lambda x: x.flatten()[0] * torch.tensor(2.5, dtype=torch.float64),
    "matmul": lambda x: x.nan_to_num(posinf=3) @ x.nan_to_num(posinf=3).T,
    "sort": lambda x: torch.cat([part.double() for part in x.sort()]),
    "clone": lambda x: x.T.clone(),
    "astype": lambda x: x.to(torch.float64),
    "index with a host tensor": lambda x: torch.ops.aten.index(x, [torch.tensor([1, 1])]),
    "index with a mask": lambda x: x[x > 0],
    "nonzero": lambda x: x[0].nonzero(),
    "write a mask": lambda x: x.clone().masked_fill_(x > 0, -1),
    "write by an index": lambda x: x.clone().index_put_(
        (torch.tensor([1]),), torch.tensor(3.0, device=x.device)
    ),
    "in place": lambda x: x.clone().add_(1).mul_(2),
    "remainder of a number": lambda x: 2.5 % x.nan_to_num(posinf=3),
    "repeat by values": lambda x: x.repeat_interleave(torch.tensor([1, 2], device=x.device), dim=0),
    "out that grows": lambda x: torch.add(x, 1, out=torch.empty(0, device=x.device)),
    "out that grows by values": lambda x: torch.nonzero(
        x, out=torch.empty(0, dtype=torch.int64, device=x.device)
    ),
    "vmap": lambda x: torch.func.vmap(torch.Tensor.neg)(x.T),
}
ON_COMPLEX = {
    "conj": lambda z: z.conj(),
    "resolve_conj": lambda z: z.conj().resolve_conj(),
    "real": lambda z: z.real,
    "resolve_neg": lambda z: z.conj().imag.resolve_neg(),
    "clone": lambda z: z.conj().clone(),
    "astype": lambda z: z.conj().to(torch.complex128),
}


@pytest.mark.parametrize("do", ON_REALS.values(), ids=ON_REALS)
def test_operator__agrees_with_the_host(do: Callable[..., Any]) -> None:
    """An operator gives the bits, dtype and strides that it gives on the host."""
    result, expected = do(X.to("emu")), do(X)

    assert (str(result.device), result.dtype) == ("emu:0", expected.dtype)
    assert result.stride() == expected.stride()
    assert same_bits(result.cpu(), expected)


@pytest.mark.parametrize("do", ON_COMPLEX.values(), ids=ON_COMPLEX)
def test_operator__pending_conjugation_agrees_with_the_host(do: Callable[..., Any]) -> None:
    """A lazy conjugation or negation on the device gives the bits of the host."""
    assert same_bits(do(Z.to("emu")).cpu(), do(Z))


MAKERS = {
    "full": lambda **on: torch.full((2,), 7, **on),
    "arange": lambda **on: torch.arange(5, **on),
    "linspace": lambda **on: torch.linspace(0, 1, 5, **on),
    "tensor": lambda **on: torch.tensor([[1, 2], [3, 4]], **on),
    "as_tensor": lambda **on: torch.as_tensor([1.5], **on),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_operator__creates_tensors_on_the_device(make: Callable[..., Any]) -> None:
    """A function that creates a tensor gives the same bits on the device."""
    assert same_bits(make(device="emu").cpu(), make())


MIXED = {
    "add": lambda x, host: x + host,
    "matmul": lambda x, host: x @ host.T,
    "cat": lambda x, host: torch.cat([x, host]),
    "where": lambda x, host: torch.where(x > 0, x, host),
    "out on the host": lambda x, host: torch.add(x, x, out=host),
    "0-d out on the host": lambda x, host: host[0, 0].fill_(x[0, 0]),
    "with meta": lambda x, host: torch.mul(x, host.to("meta")),
}


@pytest.mark.parametrize("mix", MIXED.values(), ids=MIXED)
def test_operator__refuses_mixed_devices(mix: Callable[..., Any]) -> None:
    """Operands on two devices are refused, and the one on the host is unchanged."""
    host = X.clone()

    with pytest.raises(RuntimeError, match="device"):
        mix(X.to("emu"), host)

    assert same_bits(host, X)


def test_operator__refuses_wrong_shapes_at_the_call() -> None:
    """Shapes that do not fit raise at the call and not at the next wait."""
    x = torch.ones(3, device="emu")

    with pytest.raises(RuntimeError, match="size"):
        x + torch.ones(2, device="emu")
    with pytest.raises(RuntimeError, match="size"):
        x.copy_(torch.ones(2))
    with pytest.raises(RuntimeError, match="size"):
        x.index_add_(0, torch.tensor([0], device="emu"), torch.ones(2, device="emu"))


def test_kernel__missing_on_the_host_is_refused_at_the_call() -> None:
    """A kernel that the host lacks is refused at the call, and the device goes on."""
    cell = torch.nn.LSTMCell(3, 2).to("emu")

    with pytest.raises(NotImplementedError, match="the host, which computes"):
        cell(torch.ones(1, 3, device="emu"))

    assert torch.ones(2, device="emu").tolist() == [1, 1]
