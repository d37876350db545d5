"""The emulated accelerator is a device: tensors with true layouts, in memory that the host cannot reach."""

from __future__ import annotations

import ctypes
import faulthandler
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from emulated.there import api
from fresh import forked
from inside import DTYPES
from rawmemory import bits, same_bits
from torch.utils.dlpack import from_dlpack

every_dtype = pytest.mark.parametrize(
    "name", [name for name, it in DTYPES.items() if hasattr(torch, name) and not it.is_packed]
)

if TYPE_CHECKING:
    from collections.abc import Callable


def there(*shape: int) -> torch.Tensor:
    """A tensor of the device whose elements are all different."""
    count = torch.Size(shape).numel()
    return torch.arange(float(count)).reshape(shape).to("emu")


def test_install__makes_a_device_with_one_index() -> None:
    """The emulated accelerator is torch's current accelerator, with a single device."""
    assert str(there(2).device) == "emu:0"
    assert type(there(2)) is torch.Tensor
    assert torch.accelerator.current_accelerator() == torch.device("emu")
    assert api.is_available()
    assert api.is_initialized()
    assert (api.device_count(), api.current_device()) == (1, 0)


def test_install__refuses_if_the_place_is_taken() -> None:
    """A process in which another backend uses torch's private device is refused."""
    code = """
    import torch
    from xbridge.testing import emulated

    torch.utils.rename_privateuse1_backend("npu")
    try:
        emulated.install()
    except RuntimeError as error:
        print("npu" in str(error))
    """
    assert forked(code, "torch") == (0, ["True"])


@pytest.mark.parametrize("read", [torch.Tensor.numpy, np.asarray, np.from_dlpack, from_dlpack, memoryview])
def test_memory__host_cannot_read_it(read: Callable[..., Any]) -> None:
    """None of NumPy, DLPack and the buffer protocol can read memory of the device."""
    with pytest.raises((TypeError, RuntimeError, ValueError, BufferError)):
        read(there(3))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork a process")
@pytest.mark.filterwarnings("ignore:.*fork")  # the child uses no thread of its parent
def test_memory__is_not_mapped_at_its_addresses() -> None:
    """To read at an address of the device ends the process, as it would on a GPU."""
    address = torch.ones(3, device="emu").data_ptr()
    child = os.fork()
    if not child:
        faulthandler.disable()
        ctypes.string_at(address, 4)
        os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 0


LOOKS = {
    "the tensor itself": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1),
    "sliced": lambda x: x[1:, ::2],
    "selected": lambda x: x[:, 1],
    "reshaped": lambda x: x.reshape(-1),
    "expanded": lambda x: x[:1].expand(3, -1),
    "squeezed": lambda x: x[None],
    "a diagonal": lambda x: x.diagonal(),
    "windows": lambda x: x.unfold(1, 2, 1),
    "of another dtype": lambda x: x.view(torch.int32),
    "complex": lambda x: x.view(torch.complex64),
    "conjugated": lambda x: x.view(torch.complex64).conj(),
    "imaginary": lambda x: x.view(torch.complex64).imag,
    "negated": lambda x: x.view(torch.complex64).conj().imag,
    "as real": lambda x: torch.view_as_real(torch.view_as_complex(x.view(-1, 2))),
    "detached": lambda x: x.detach(),
    "chunked": lambda x: x.chunk(2, 1)[1],
    "strided": lambda x: x.as_strided((2, 2), (1, 3), 2),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_view__has_the_layout_of_a_host_view(look: Callable[..., Any]) -> None:
    """A view has the shape, strides, offset and flags that it would have on the host."""
    host = torch.arange(12.0).reshape(3, 4)
    x = look(host.to("emu"))
    expected = look(host)

    assert (x.shape, x.stride(), x.storage_offset()) == (
        expected.shape,
        expected.stride(),
        expected.storage_offset(),
    )
    assert (x.dtype, x.is_conj(), x.is_neg()) == (expected.dtype, expected.is_conj(), expected.is_neg())
    assert same_bits(x.cpu().resolve_conj().resolve_neg(), expected)


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_view__does_not_wait(look: Callable[..., Any]) -> None:
    """A view of a tensor does not complete the copy into it."""
    pinned = torch.zeros(3, 4).pin_memory()
    x = torch.empty(3, 4, device="emu").copy_(pinned, non_blocking=True)

    look(x)
    pinned.fill_(1)

    assert x.tolist() == [[1] * 4] * 3


@every_dtype
def test_empty__has_all_bits_set(name: str) -> None:
    """New memory of any dtype and layout has all bits set."""
    dtype = getattr(torch, name)
    for x in (
        torch.empty(4, dtype=dtype, device="emu"),
        torch.empty_strided((2, 2), (1, 2), dtype=dtype, device="emu"),
    ):
        assert (bits(x.cpu()) == 0xFF).all()


def test_memory__is_cleared_when_freed() -> None:
    """Memory that is used again holds nothing of its former values."""
    x = torch.ones(129, device="emu")
    place = x.data_ptr()
    del x

    y = torch.empty(129, device="emu")

    assert y.data_ptr() == place
    assert y.isnan().all()


def test_pin_memory__pins_on_request_only() -> None:
    """Memory of the host is pinned exactly where torch was asked for it."""
    pinned = torch.zeros(4).pin_memory()

    assert pinned.is_pinned()
    assert pinned[1:].is_pinned()
    assert torch.from_numpy(pinned.numpy()).is_pinned()
    assert torch.empty(0, pin_memory=True).is_pinned()
    assert torch.zeros(2, 3, pin_memory=True).tolist() == [[0] * 3] * 2
    assert not torch.zeros(4).is_pinned()
    assert not torch.zeros(0).is_pinned()


def test_pin_memory__refuses_device_memory() -> None:
    """Only memory of the host can be pinned."""
    with pytest.raises(RuntimeError, match="only memory of the host"):
        torch.empty(2, device="emu", pin_memory=True)


def test_pin_memory__keeps_values_and_layout() -> None:
    """A pinned copy has the values and the strides of its source."""
    x = torch.arange(6.0).reshape(2, 3).T

    pinned = x.pin_memory()

    assert same_bits(pinned, x)
    assert pinned.stride() == x.stride()


def test_backward__through_moves() -> None:
    """A gradient flows through a move to the device and back."""
    w = torch.ones(3, requires_grad=True)

    (w.to("emu") * 3).cpu().sum().backward()  # type: ignore[no-untyped-call]

    assert w.grad is not None
    assert w.grad.tolist() == [3, 3, 3]
