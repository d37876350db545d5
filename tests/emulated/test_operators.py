"""Operators give on the emulated accelerator what they give on the host; there is no list of them."""

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
    "add a number": lambda x: x + 1,
    "subtract from a number": lambda x: 1 - x,
    "multiply by a host scalar": lambda x: x * torch.tensor(2.5, dtype=torch.float64),
    "a host scalar times": lambda x: torch.tensor(2.5, dtype=torch.float64) * x,
    "a strong host scalar times a 0-d tensor": lambda x: (
        torch.tensor(2.5, dtype=torch.float64) * x.flatten()[0]
    ),
    "a host scalar to the power of": lambda x: torch.tensor(2.0) ** x,
    "the larger of a host scalar and": lambda x: torch.maximum(torch.tensor(2), x),
    "a host scalar is less than": lambda x: torch.tensor(1.0) < x,
    "atan2 of a host scalar": lambda x: torch.atan2(torch.tensor(2.0), x),
    "fill by a mask with a host scalar": lambda x: x.masked_fill(x > 0, torch.tensor(2.0)),
    "a weak number plus": lambda x: torch.add(2.5, x.flatten()[0]),
    "a 0-d tensor and a weak number": lambda x: x.flatten()[0] * 2.5,
    "a 0-d tensor and a strong number": lambda x: x.flatten()[0] * torch.tensor(2.5, dtype=torch.float64),
    "compare with a weak number": lambda x: (x.flatten()[0] + 0.1) == 1.6,
    "compare": lambda x: x > 0,
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "matmul": lambda x: x.nan_to_num(posinf=3) @ x.nan_to_num(posinf=3).T,
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "isfinite": lambda x: x.isfinite(),
    "aminmax": lambda x: torch.stack(torch.aminmax(x)),
    "sort": lambda x: torch.cat([part.double() for part in x.sort()]),
    "cat": lambda x: torch.cat([x, x.T.reshape(2, 3)], 1),
    "stack": lambda x: torch.stack([x, x]),
    "clone": lambda x: x.T.clone(),
    "contiguous": lambda x: x.T.contiguous(),
    "astype": lambda x: x.to(torch.float64),
    "cast to bfloat16": lambda x: x.to(torch.bfloat16),
    "index with a list": lambda x: x[[1, 0]],
    "index with a host tensor": lambda x: torch.ops.aten.index(x, [torch.tensor([1, 1])]),
    "index with a mask": lambda x: x[x > 0],
    "nonzero": lambda x: x[0].nonzero(),
    "unique": lambda x: x.unique(),
    "write an element": lambda x: x.clone().index_fill_(0, torch.tensor([0], device=x.device), 7.0),
    "write a mask": lambda x: x.clone().masked_fill_(x > 0, -1),
    "write by an index": lambda x: x.clone().index_put_(
        (torch.tensor([1]),), torch.tensor(3.0, device=x.device)
    ),
    "write a slice": lambda x: x.clone().diagonal().fill_(7),
    "in place": lambda x: x.clone().add_(1).mul_(2),
    "like": torch.ones_like,
    "new": lambda x: x.new_full((2,), 3),
    "repeat": lambda x: x.repeat(2, 1),
    "remainder by a number": lambda x: x % 2.5,
    "remainder of a 0-d tensor by a number": lambda x: x.flatten()[0].half() % 2.5,
    "remainder of a number": lambda x: 2.5 % x.nan_to_num(posinf=3),
    "remainder in place": lambda x: x.clone().fmod_(2.5),
    "bits of a number": lambda x: x.to(torch.bool) ^ True,
    "shift a number": lambda x: 3 << (x > 0).to(torch.int8),
    "repeat by values": lambda x: x.repeat_interleave(torch.tensor([1, 2], device=x.device), dim=0),
    "copy and broadcast": lambda x: torch.zeros(2, 3, device=x.device).copy_(x[0]),
    "softmax": lambda x: x.nan_to_num(posinf=3).softmax(1),
    "out of the right size": lambda x: torch.add(x, 1, out=torch.empty_like(x)),
    "out that grows": lambda x: torch.add(x, 1, out=torch.empty(0, device=x.device)),
    "out that grows by values": lambda x: torch.nonzero(
        x, out=torch.empty(0, dtype=torch.int64, device=x.device)
    ),
    "vmap": lambda x: torch.func.vmap(torch.Tensor.neg)(x.T),
    "set": lambda x: torch.empty(0, device=x.device).set_(x),
}
ON_COMPLEX = {
    "conj": lambda z: z.conj(),
    "conj and add": lambda z: z.conj() + 1,
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


@pytest.mark.parametrize("do", [torch.conj, lambda z: z.conj().imag], ids=["conj", "neg"])
def test_operator__pending_on_the_host_is_resolved_by_the_move(do: Callable[..., Any]) -> None:
    """What is pending on the host is done when the tensor arrives."""
    assert same_bits(do(Z).to("emu").cpu(), do(Z))


MAKERS = {
    "zeros": lambda **on: torch.zeros(2, 3, **on),
    "full": lambda **on: torch.full((2,), 7, **on),
    "arange": lambda **on: torch.arange(5, **on),
    "linspace": lambda **on: torch.linspace(0, 1, 5, **on),
    "eye": lambda **on: torch.eye(3, **on),
    "tensor": lambda **on: torch.tensor([[1, 2], [3, 4]], **on),
    "scalar": lambda **on: torch.tensor(1.5, **on),
    "as_tensor": lambda **on: torch.as_tensor([1.5], **on),
    "tril_indices": lambda **on: torch.tril_indices(3, 3, **on),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_operator__creates_tensors_on_the_device(make: Callable[..., Any]) -> None:
    """A function that creates a tensor gives the same bits on the device."""
    assert same_bits(make(device="emu").cpu(), make())


def test_empty__keeps_the_memory_format() -> None:
    """A memory format is kept by a new tensor."""
    x = torch.empty(1, 2, 3, 4, device="emu", memory_format=torch.channels_last)

    assert x.is_contiguous(memory_format=torch.channels_last)


ANSWERS = {
    "item": lambda x: x[0, 0].item(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool((x == x.clone()).all()),
    "equal": lambda x: torch.equal(x, x.clone()),
    "allclose": lambda x: torch.allclose(x, x + 1),
}


@pytest.mark.parametrize("ask", ANSWERS.values(), ids=ANSWERS)
def test_operator__answers_as_on_the_host(ask: Callable[..., Any]) -> None:
    """A question about values has the same answer as on the host."""
    assert ask(X.to("emu")) == ask(X)


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
