"""Every form of message that takes torch to hear, word for word: out of torch, within it and into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from messages import message_of

import xbridge

torch = pytest.importorskip("torch")

from xbridge.testing.samples._torch_refused import Wrapper  # noqa: E402 -- it imports torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], object]

# Half of what is tried here torch calls a prototype, or deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore:(torch.quantize|.*[Nn]ested|ComplexHalf):UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]

A = np.arange(3.0)
F = torch.ones(2)
META = torch.ones(2, device="meta")


def host(make: Callable[[], Any], **options: Any) -> Call:
    return lambda: xbridge.to_numpy(make(), **options)


def torchs(make: Callable[[], Any], **options: Any) -> Call:
    return lambda: xbridge.to_backend(make(), "torch", **options)


def leaf(make: Callable[[], Any]) -> Call:
    return lambda: xbridge.asarray(make(), requires_grad=True)


def tracked() -> Any:
    return torch.ones(2, requires_grad=True)


def shrunk() -> Any:
    """A tensor whose storage no longer reaches as far as it does."""
    x = torch.ones(2)
    x.untyped_storage().resize_(4)
    return x


def ungraded(call: Call) -> Call:
    """The call, where gradients are off."""
    quiet: Call = torch.no_grad()(call)
    return quiet


def dual() -> object:
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        return xbridge.to_numpy(forward_ad.make_dual(F, F))


def traced() -> object:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(lambda x: x + xbridge.to_numpy(F).sum())(F)


def faked() -> object:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return xbridge.to_numpy(F)


OUT = "cannot convert a torch float32 array of shape (2,) on cpu to numpy"
WITHIN = "cannot convert a torch float32 array of shape (2,) on cpu to torch"
INTO = "cannot convert a numpy float64 array of shape (3,) on cpu to torch"
PLACES = ", ".join(["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))])

FORMS: list[tuple[Call, type[xbridge.XBridgeError], str, str]] = [
    (
        torchs(tracked, dtype="int8", grad="keep"),
        xbridge.GradientError,
        WITHIN,
        "grad='keep' was asked, and no gradient flows through int8; try grad=None",
    ),
    (
        ungraded(torchs(tracked, dtype="float64", grad="keep")),
        xbridge.GradientError,
        WITHIN,
        "grad='keep' was asked where gradients are off; try grad=None, or turning them on",
    ),
    (
        host(tracked, grad="keep"),
        xbridge.GradientError,
        OUT,
        "grad='keep' was asked, and a graph ends where its library ends; try grad=None",
    ),
    (
        leaf(lambda: F.to(torch.int8)),
        xbridge.GradientError,
        "cannot convert a torch int8 array of shape (2,) on cpu to torch with requires_grad=True",
        "no gradient flows through int8; try dtype='float32'",
    ),
    (
        leaf(lambda: tracked() * 2),
        xbridge.GradientError,
        WITHIN + " with requires_grad=True",
        "a new leaf would cut the history that it has; try grad='detach' to cut it",
    ),
    (
        torchs(tracked, grad="detach", copy=False),
        xbridge.CopyError,
        WITHIN + " with copy=False",
        "it requires grad, and torch has no read-only arrays; try copy=None",
    ),
    (
        torchs(lambda: F, dtype="float64", copy=False),
        xbridge.CopyError,
        WITHIN + " with copy=False",
        "float32 becomes float64; try copy=None",
    ),
    (
        host(lambda: F.to(torch.complex64).conj(), copy=False),
        xbridge.CopyError,
        "cannot convert a torch complex64 array of shape (2,) on cpu to numpy with copy=False",
        "an operation is still pending on it; try copy=None",
    ),
    (
        torchs(lambda: A.astype(">f8"), copy=False),
        xbridge.CopyError,
        INTO + " with copy=False",
        "its bytes are in foreign order; try copy=None",
    ),
    (
        torchs(lambda: np.zeros(25, "u1")[1:].view("f8"), copy=False),
        xbridge.CopyError,
        INTO + " with copy=False",
        "its memory is not aligned; try copy=None",
    ),
    (
        torchs(lambda: A[::-1], copy=False),
        xbridge.CopyError,
        INTO + " with copy=False",
        "torch has no such strides; try copy=None",
    ),
    (
        torchs(lambda: np.frombuffer(bytes(24)), copy=False),
        xbridge.CopyError,
        INTO + " with copy=False",
        "its memory is read-only, and torch has no read-only arrays; try copy=None",
    ),
    (
        torchs(lambda: np.lib.stride_tricks.as_strided(A, (2, 2), (8, 8)), copy=False),
        xbridge.CopyError,
        "cannot convert a numpy float64 array of shape (2, 2) on cpu to torch with copy=False",
        "its elements may share memory with each other, and torch has no read-only arrays; try copy=None",
    ),
    (
        torchs(lambda: A, device="cuda:77"),
        xbridge.DeviceError,
        INTO,
        f"torch has no device cuda:77 here, only {PLACES}; try device='cpu'",
    ),
    (
        torchs(lambda: np.ones(2, "longdouble")),
        xbridge.DTypeError,
        "cannot convert a numpy longdouble array of shape (2,) on cpu to torch",
        "torch has no longdouble; try dtype='nearest', or dtype='float64'",
    ),
    (
        torchs(lambda: np.ones(2, "clongdouble")),
        xbridge.DTypeError,
        "cannot convert a numpy clongdouble array of shape (2,) on cpu to torch",
        "torch has no clongdouble; try dtype='nearest', or dtype='complex128'",
    ),
    (
        host(lambda: torch.ones(2, dtype=torch.complex32)),
        xbridge.DTypeError,
        "cannot convert a torch complex32 array of shape (2,) on cpu to numpy",
        "NumPy has no complex32; try dtype='nearest', or dtype='complex64'",
    ),
    (
        torchs(lambda: A, dtype=torch.complex32),
        xbridge.DTypeError,
        INTO,
        "torch has no complex32; try dtype='nearest', or dtype='complex64'",
    ),
    (
        torchs(lambda: A, dtype=torch.bits8),
        xbridge.DTypeError,
        INTO,
        "torch has no bits8; try dtype='nearest', or casting it in its own library first",
    ),
    (
        torchs(lambda: torch.tensor([1e300], dtype=torch.float64), dtype="default"),
        xbridge.ValueLossError,
        "cannot turn float64 into float32 unasked",
        "a value does not fit float32; try naming one: dtype='float64' or dtype='float32'",
    ),
    (
        torchs(lambda: A, device="meta"),
        xbridge.DeviceError,
        INTO,
        f"torch has no device meta here, only {PLACES}; try device='cpu'",
    ),
    (
        torchs(lambda: META, device="cpu"),
        xbridge.DeviceError,
        "cannot move a torch tensor from 'meta' to 'cpu'",
        "meta holds no data; try torch.empty_like(x, device='cpu')",
    ),
    (
        host(lambda: META),
        xbridge.UnsupportedArrayError,
        "cannot convert a torch float32 array of shape (2,) on meta to numpy",
        "a meta tensor holds no data; try torch.empty_like(x, device='cpu')",
    ),
    (
        host(shrunk),
        xbridge.UnsupportedArrayError,
        OUT,
        "its storage was freed or shrunk; try restoring the storage first",
    ),
    (
        torchs(shrunk, copy=True),
        xbridge.UnsupportedArrayError,
        "cannot read a torch tensor",
        "its storage was freed or shrunk; try restoring the storage first",
    ),
    (
        lambda: xbridge.shares_memory(shrunk(), A),
        xbridge.UnsupportedArrayError,
        "cannot look at the memory of a torch tensor",
        "its storage was freed or shrunk; try restoring the storage first",
    ),
    (
        host(torch.nn.UninitializedParameter),
        xbridge.UnsupportedArrayError,
        "cannot convert a torch float32 array of shape () on cpu to numpy",
        "an uninitialized parameter has no memory yet; try x.materialize(shape)",
    ),
    (
        host(lambda: torch.nested.nested_tensor([F, A])),
        xbridge.UnsupportedArrayError,
        OUT,
        "a nested tensor is ragged; try x.unbind()",
    ),
    (
        host(lambda: Wrapper(F)),
        xbridge.UnsupportedArrayError,
        OUT,
        "a Wrapper is not plain memory; try the tensor inside it",
    ),
    (
        host(lambda: torch.quantize_per_tensor(F, 0.1, 0, torch.qint8)),
        xbridge.UnsupportedArrayError,
        "cannot convert a torch qint8 array of shape (2,) on cpu to numpy",
        "a quantized tensor holds codes, not values; try x.dequantize()",
    ),
    (
        host(F.to_sparse),
        xbridge.UnsupportedArrayError,
        OUT,
        "its layout is torch.sparse_coo; try x.to_dense()",
    ),
    (
        lambda: torch.func.vmap(xbridge.to_numpy)(torch.ones(3, 2)),
        xbridge.UnsupportedArrayError,
        OUT,
        "a function transform is running over it; try converting outside the transform",
    ),
    (
        dual,
        xbridge.UnsupportedArrayError,
        OUT,
        "its forward-mode tangent would be lost; try forward_ad.unpack_dual(x).primal",
    ),
    (
        traced,
        xbridge.UnsupportedArrayError,
        OUT,
        "a tracer would bake its values into the program; try converting outside the trace",
    ),
    (
        faked,
        xbridge.UnsupportedArrayError,
        OUT,
        "a fake mode is running, which computes no values; try converting outside the mode",
    ),
    (
        lambda: xbridge.asarray([F, META]),
        xbridge.DeviceError,
        "cannot stack the arrays of this list",
        "they live on cpu, meta; try align(*arrays) first",
    ),
    (
        ungraded(lambda: xbridge.asarray([tracked(), F], grad="keep")),
        xbridge.GradientError,
        "cannot stack the arrays of this list with grad='keep'",
        "torch records no history now; try grad=None",
    ),
    (
        lambda: xbridge.asarray([F.to(torch.bfloat16), F.to(torch.float8_e5m2)]),
        xbridge.DTypeError,
        "cannot stack arrays of bfloat16 and float8_e5m2",
        "they have no common dtype; try dtype='float32'",
    ),
    (
        lambda: xbridge.array_namespace(F, A),
        xbridge.UnsupportedArrayError,
        "cannot find one namespace",
        "the arrays come from torch and numpy; try align(*xs) first",
    ),
]


@pytest.mark.parametrize(("call", "error", "asked", "said"), FORMS, ids=[form[3][:70] for form in FORMS])
def test_a_message_says_what_was_asked_why_not_and_what_to_type(
    call: Call, error: type[xbridge.XBridgeError], asked: str, said: str
) -> None:
    assert message_of(call, error) == f"{asked}: {said}"
