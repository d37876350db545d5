"""Tensors that are no values in memory: refused on the way out, free within torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch_kinds import Endless, Refuses, Wrapper
from versions import is_older

import xbridge

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

# Half of what is tried here torch calls a prototype, or deprecates.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{begin}:UserWarning")
    for begin in ("torch.quantize", ".*[Nn]ested", "Sparse", ".*MaskedTensor", "The PyTorch API of Masked")
]

U, D = xbridge.UnsupportedArrayError, xbridge.DTypeError


def masked(data: Tensor) -> Any:
    """A tensor with a mask."""
    from torch.masked import masked_tensor

    return masked_tensor(data, data > 0)


def fake() -> Tensor:
    """A tensor without data that remembers its device."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(2)  # type: ignore[no-any-return]


def jagged() -> Tensor:
    """Rows of several lengths, the newer way."""
    made: Tensor = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    return made


SPECIAL: dict[str, tuple[Callable[[], Any], str]] = {
    "sparse": (lambda: torch.eye(2).to_sparse(), "x.to_dense()"),
    "sparse, tracked": (lambda: torch.eye(2).to_sparse().requires_grad_(), "x.to_dense()"),
    "sparse rows": (lambda: torch.eye(2).to_sparse_csr(), "x.to_dense()"),
    "mkldnn": (lambda: torch.ones(2, 2).to_mkldnn(), "x.to_dense()"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "x.dequantize()"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "x.unbind()"),
    "jagged": (jagged, "x.unbind()"),
    "meta": (lambda: torch.ones(2, device="meta"), ""),
    "fake": (fake, ""),
    "a wrapper": (lambda: Wrapper(torch.ones(2)), ""),
    "an empty wrapper": (lambda: Wrapper(torch.ones(0)), ""),
    "an endless dispatch": (lambda: torch.Tensor._make_subclass(Endless, torch.ones(2)), ""),
    "uninitialized": (torch.nn.UninitializedParameter, "x.materialize(shape)"),
    "an uninitialized buffer": (torch.nn.UninitializedBuffer, "x.materialize(shape)"),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_to_numpy__refuses_tensors_without_values(name: str) -> None:
    """A tensor with no values in memory is refused by every verb, with a hint."""
    make, hint = SPECIAL[name]
    x = make()
    calls: list[Callable[[], object]] = [
        lambda: xbridge.to_numpy(x),
        lambda: xbridge.to_numpy(x, copy=True),
        lambda: xbridge.to_numpy(x, dtype="float64", grad="detach"),
        lambda: xbridge.asarray(x, backend="numpy"),
        lambda: xbridge.asarray([x], backend="numpy"),
        lambda: xbridge.to_list(x),
        lambda: xbridge.align(np.ones(2), x, backend="numpy"),
        lambda: xbridge.shares_memory(x, x),
    ]
    for call in calls:
        with pytest.raises(U) as caught:
            call()
        assert caught.value.hint == hint


@pytest.mark.parametrize("name", SPECIAL)
def test_asarray__passes_special_tensors_within_torch(name: str) -> None:
    """What cannot leave torch is accepted within torch unchanged."""
    x = SPECIAL[name][0]()
    assert xbridge.asarray(x) is x
    assert xbridge.to_backend(x, "torch", device=str(x.device), copy=False) is x
    assert xbridge.align(x, 2.0)[0] is x
    assert (xbridge.backend_of(x), xbridge.device_of(x)) == ("torch", str(x.device))
    assert xbridge.dtype_of(x) == str(x.dtype).removeprefix("torch.")


@pytest.mark.parametrize("name", ["sparse", "sparse rows", "nested", "jagged", "meta", "fake", "a wrapper"])
def test_asarray__casts_special_tensors_as_torch_does(name: str) -> None:
    """A cast or copy within torch gives the type and layout of torch's own."""
    x = SPECIAL[name][0]()
    for made, theirs in (
        (xbridge.asarray(x, dtype="float64"), x.to(torch.float64)),
        (xbridge.asarray(x, copy=True), x.clone()),
    ):
        assert (type(made), made.dtype, made.layout) == (type(theirs), theirs.dtype, theirs.layout)
        assert made is not x


def test_asarray__error_of_torch_becomes_an_xbridge_error() -> None:
    """What torch itself cannot do raises an error of xbridge, with a hint."""
    for x, options in (
        (SPECIAL["quantized"][0](), {"dtype": "float64"}),
        (SPECIAL["mkldnn"][0](), {"dtype": "float64"}),
        (SPECIAL["an endless dispatch"][0](), {"copy": True}),
        (SPECIAL["meta"][0](), {"device": "cpu"}),
        (SPECIAL["uninitialized"][0](), {"copy": True}),
    ):
        with pytest.raises(xbridge.XBridgeError, match=r"failed with|cannot "):
            xbridge.asarray(x, **options)


def test_to_numpy__refuses_masked_tensors() -> None:
    """A masked tensor is refused, since its mask would be lost."""
    x = masked(torch.tensor([1.0, -1.0]))
    assert xbridge.asarray(x) is x
    for call in (xbridge.to_numpy, xbridge.to_list, lambda x: xbridge.asarray([x], backend="numpy")):
        with pytest.raises(U) as caught:
            call(x)
        assert caught.value.hint == "x.to_tensor(value)"


def test_to_backend__refuses_the_meta_device() -> None:
    """The meta device neither takes nor gives data."""
    meta = torch.ones(2, device="meta")
    for call in (
        lambda: xbridge.to_backend(np.ones(2), "torch", device="meta"),
        lambda: xbridge.asarray([1.0], like=meta),
        lambda: xbridge.asarray([torch.ones(2), np.ones(2)], device="meta"),
        lambda: xbridge.align(meta, np.ones(2)),
        lambda: xbridge.tree.to_backend([np.ones(2)], "torch", device="meta"),
        lambda: xbridge.transfer(torch.ones(2), "torch", device="meta"),
        lambda: xbridge.prefetch([], "torch", device="meta"),
    ):
        with pytest.raises(xbridge.DeviceError, match=r"meta.*; try device='cpu'$"):
            call()
    for back in (
        lambda: xbridge.asarray(meta, device="cpu"),
        lambda: xbridge.align(torch.ones(2), meta),
    ):
        with pytest.raises(xbridge.DeviceError, match="meta holds no data"):
            back()


SMALL = ("int4", "uint2", "int1", "float4_e2m1fn_x2", "bits8", "bits1x8", "complex32")


@pytest.mark.parametrize("word", [word for word in SMALL if hasattr(torch, word)])
@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_dtype_of__small_dtype_stays_in_torch(word: str) -> None:
    """A dtype without a canonical name stays in torch."""
    x = torch.zeros(4, dtype=torch.int32).view(getattr(torch, word))
    assert xbridge.asarray(x) is x
    assert xbridge.dtype_of(x) in (word, f"torch.{word}")  # it is not the int4 of other libraries
    for call in (xbridge.to_numpy, xbridge.to_list, lambda x: xbridge.to_numpy(x, copy=True)):
        with pytest.raises(D, match=f"{word}"):
            call(x)
    with pytest.raises(D, match=word):
        xbridge.to_backend(np.ones(2), "torch", dtype=x.dtype)


def batches(x: Any) -> Any:
    """A tree of one, in each way that a tree can be converted."""
    tree = pytest.importorskip("xbridge.tree", exc_type=ImportError)
    yield tree.to_numpy([x])[0]
    yield tree.to_numpy([x], copy=True)[0]
    yield tree.align([np.ones(2)], [x])[1][0]
    yield xbridge.transfer([x], "numpy").result()[0]
    yield from (batch[0] for batch in xbridge.prefetch([[x]], "numpy"))
    yield xbridge.aligned(backend="numpy")(lambda y: y)(x).detach().as_subclass(torch.Tensor).numpy()


def test_to_numpy__does_not_call_methods_of_a_subclass() -> None:
    """A tensor is described and read without a call to a method of its class."""
    plain = torch.ones(2)
    x = plain.as_subclass(Refuses)
    assert (xbridge.backend_of(x), xbridge.dtype_of(x), xbridge.device_of(x)) == ("torch", "float32", "cpu")
    assert xbridge.array_namespace(x) is xbridge.array_namespace(plain)
    assert xbridge.shares_memory(x, plain)
    assert not xbridge.shares_memory(np.ones(2), x)
    assert xbridge.explain(x, "numpy").shares_memory
    assert not xbridge.explain(x, "torch", dtype="float64").shares_memory
    assert xbridge.to_list(x) == [1.0, 1.0]
    assert [made.tolist() for made in batches(x)] == [[1.0, 1.0]] * 6
    assert xbridge.transfer([x], "torch").result()[0] is x
    assert xbridge.align(np.ones(2), x)[1].tolist() == [1.0, 1.0]
    with xbridge.record() as seen:
        xbridge.to_numpy(x, copy=True)
    assert [row.copied for row in seen.rows] == [8]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: xbridge.asarray(x, dtype="float64"),
        lambda x: xbridge.asarray(x, copy=True),
        lambda x: xbridge.asarray([x, x]),
        lambda x: xbridge.transfer([x], "torch", copy=True).result(),
    ],
    ids=["astype", "copy", "stack", "transfer"],
)
def test_asarray__chains_the_error_of_a_subclass(call: Callable[[Any], Any]) -> None:
    """An error that a subclass raises in torch's operation is the cause of ours."""
    with pytest.raises(xbridge.XBridgeError, match=r"the step .* failed with") as caught:
        call(torch.ones(2).as_subclass(Refuses))
    causes = [caught.value.__cause__, getattr(caught.value.__cause__, "__cause__", None)]
    assert any(isinstance(cause, RuntimeError) for cause in causes)


@pytest.fixture
def mesh() -> Iterator[Any]:
    """A device mesh of this process alone."""
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.skipif(is_older("torch", "2.8"), reason="torch 2.7 may wait for ever when it ends the group")
@pytest.mark.filterwarnings("ignore")
def test_to_numpy__distributed_tensor_says_how_to_gather(mesh: Any) -> None:
    """The error for a distributed tensor says how to gather it."""
    from torch.distributed.tensor import Shard, distribute_tensor

    x = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    assert xbridge.asarray(x) is x
    assert type(xbridge.asarray(x, dtype="float64", copy=True)) is type(x)
    with pytest.raises(U, match=r"try x\.full_tensor\(\) or x\.to_local\(\)$"):
        xbridge.to_numpy(x)
    assert xbridge.to_numpy(x.full_tensor()).tolist() == [1.0] * 4


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_asarray__default_dtype_of_a_sparse_tensor(layout: str) -> None:
    """The numbers that it stores are checked, and those of one place together."""
    wide = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    made = xbridge.asarray(getattr(wide, layout)(), dtype="default")
    assert made.dtype == torch.float32
    assert made.to_dense().tolist() == wide.tolist()
    twice = torch.sparse_coo_tensor([[0, 0]], torch.full((2,), 2e38, dtype=torch.float64), (2,))
    for lossy in (getattr(wide * 1e300, layout)(), twice):
        with pytest.raises(xbridge.ValueLossError):
            xbridge.asarray(lossy, dtype="default")
