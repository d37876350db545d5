"""From library to library on one device: which steps run, that no byte sees the host, and what is shared.

The devices are pretended: a stub of CuPy, toys that show memory of the same device to it, and torch and JAX
with their host memory called a device, so that their own DLPack is what carries it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stub_cupy
from inside import get_backend
from toylib import Toy, make_backend

import xbridge

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = pytest.mark.usefixtures("own_registry")

ROOT = __name__.partition(".")[0]
"""The package that the classes of this file come from."""

CUDA = xbridge.Device("cuda:0")


class Card(Toy):
    """A toy in the memory of a device: it holds one of the stub's arrays, and shows its memory."""


def make_cards(name: str = "cards", **changes: Any) -> ModuleType:
    """A backend for cards, which are detached, settled, copied and cast on their own device."""
    backend: Any = get_backend("cupy")

    def log(verb: str) -> Any:
        def step(x: Card, *args: Any) -> Any:
            steps.append(" ".join(("cards", verb, *map(str, args))))
            return Card(getattr(backend, verb)(x.data, *args))

        return step

    def export(x: Card) -> Any:
        steps.append("cards to_dlpack")
        return backend.to_dlpack(x.data)

    def import_(shown: Any) -> Card:
        steps.append("cards from_dlpack")
        return Card(backend.from_dlpack(shown))

    verbs: dict[str, Any] = {
        word: log(word) for word in ("detach", "materialize", "check_cast", "astype", "copy", "to_device")
    }
    own: dict[str, Any] = {
        **verbs,
        "array_types": (Card,),
        "assumes_immutable": False,
        "array_info": lambda x: backend.array_info(x.data),
        "memory_layout": lambda x: backend.memory_layout(x.data),
        "unsupported": lambda x, *, leaving: None,
        "unsupported_dtype": backend.unsupported_dtype,
        "accepts_layout": backend.accepts_layout,
        "resolve_device": lambda device, near: (
            device if device == "cpu" else backend.resolve_device(device, near)
        ),
        "devices": lambda: (xbridge.Device("cpu"), *backend.devices()),
        "to_dlpack": export,
        "from_dlpack": import_,
    }
    return make_backend(name, **{**own, **changes})


steps: list[str] = []


def a_card(values: Any, **changes: Any) -> Card:
    xbridge.register_backend("cards", make_cards(**changes), roots=(ROOT,), replace=True)
    card = Card(xbridge.to_backend(np.asarray(values), "cupy").copy())
    steps.clear()
    return card


def plan(x: object, target: str, **options: Any) -> list[str]:
    return [f"{step.backend} {step.action}" for step in xbridge.explain(x, target, **options).steps]


# -- which steps run -----------------------------------------------------------------------------


def test_to_backend__hands_over_device_memory(cupy: ModuleType) -> None:
    """Libraries that share a device exchange memory without going through the host."""
    x = xbridge.to_backend(np.arange(3.0), "cupy")
    a_card([1.0])
    assert plan(x, "cards") == ["cupy to_dlpack", "cards from_dlpack"]
    sent = stub_cupy.state.to_numpy, stub_cupy.state.to_device
    card = xbridge.to_backend(x, "cards")
    assert (stub_cupy.state.to_numpy, stub_cupy.state.to_device) == sent, "it has been on the host"
    x[0] = xbridge.to_backend(np.array(7.0), "cupy")
    assert card.data.get().tolist() == [7.0, 1.0, 2.0]
    card.data[1] = xbridge.to_backend(np.array(8.0), "cupy")
    assert x.get().tolist() == [7.0, 8.0, 2.0]
    assert xbridge.shares_memory(x, card)


SHARE = ["cards to_dlpack", "cupy from_dlpack"]
COPY = ["cards copy", *SHARE]
OTHER = xbridge.Device("cuda:1")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"copy": True}, COPY),
        ({"copy": False}, SHARE),
        ({"dtype": "float32"}, [*COPY, "cupy astype float32"]),
        ({"device": CUDA}, SHARE),
        ({"device": OTHER}, [*COPY, "cupy to_device cuda:1"]),
        ({"device": OTHER, "dtype": "float32"}, [*COPY, "cupy astype float32", "cupy to_device cuda:1"]),
        (
            {"device": OTHER, "dtype": "complex128"},
            [*COPY, "cupy to_device cuda:1", "cupy astype complex128"],
        ),
    ],
    ids=str,
)
def test_explain__steps_between_libraries_on_one_device(
    cupy: ModuleType, options: dict[str, Any], expected: list[str]
) -> None:
    """A plan between two libraries on one device has the fewest steps for its options."""
    assert plan(a_card([1.0, 2.0]), "cupy", **options) == expected


def test_to_backend__detaches_before_handing_over(cupy: ModuleType) -> None:
    """A tracked array is detached and copied for a library without read-only arrays."""

    def tracked(x: Card) -> Any:
        return get_backend("cupy").array_info(x.data)._replace(requires_grad=True)

    card = a_card([1.0, 2.0], array_info=tracked)
    assert plan(card, "cupy") == ["cards detach", *COPY]
    with pytest.raises(xbridge.CopyError, match="it requires grad, and cupy has no read-only arrays"):
        xbridge.to_backend(card, "cupy", copy=False)
    with pytest.raises(xbridge.GradientError, match="a graph cannot leave its library"):
        xbridge.to_backend(card, "cupy", grad="keep")


def test_to_backend__copies_immutable_memory_for_writers(cupy: ModuleType) -> None:
    """Immutable memory is shared only with libraries that cannot write to it."""
    frozen: dict[str, Any] = {
        "assumes_immutable": True,
        "memory_layout": lambda x: get_backend("cupy").memory_layout(x.data)._replace(writable=False),
    }
    card = a_card([1.0], **frozen)
    assert plan(card, "cupy") == COPY
    assert plan(card, "cupy", dtype="float32") == [*SHARE, "cupy astype float32"]
    stones = make_cards("stones", gaps={}, **frozen)
    xbridge.register_backend("stones", stones, roots=())
    assert plan(card, "stones") == ["cards to_dlpack", "stones from_dlpack"]
    x = xbridge.to_backend(np.ones(1), "cupy")
    assert plan(x, "stones") == ["cupy copy", "cupy to_dlpack", "stones from_dlpack"]
    with pytest.raises(xbridge.CopyError, match="can change, and stones reads it later"):
        xbridge.to_backend(x, "stones", copy=False)


def test_to_backend__copies_unsupported_layouts_first(cupy: ModuleType) -> None:
    """Strides that the target lacks are made contiguous before the hand-over."""
    x = xbridge.to_backend(np.arange(4.0), "cupy")[::-1]
    a_card([1.0], accepts_layout=lambda info, layout: all(stride >= 0 for stride in layout.strides))
    assert plan(x, "cards") == ["cupy copy", "cupy to_dlpack", "cards from_dlpack"]
    assert xbridge.to_backend(x, "cards").data.get().tolist() == [3.0, 2.0, 1.0, 0.0]
    with pytest.raises(xbridge.CopyError, match="cards does not support its strides"):
        xbridge.to_backend(x, "cards", copy=False)


def test_to_backend__host_only_if_asked(cupy: ModuleType) -> None:
    """Device memory goes to the host only for a target or device that is on the host."""
    card = a_card([1.0, 2.0])
    assert plan(card, "numpy") == ["cards to_device cpu", "cards to_numpy", "numpy from_numpy"]
    x = xbridge.to_backend(np.ones(2), "cupy")
    assert plan(x, "cards", device=xbridge.Device("cpu"))[:2] == ["cupy to_device cpu", "cupy to_numpy"]


def test_asarray__stacks_on_the_device(cupy: ModuleType) -> None:
    """A list of device arrays is stacked without going through the host."""
    card = a_card([1.0, 2.0])
    before = stub_cupy.state.to_numpy
    stacked = xbridge.asarray([card, card], backend="cupy")
    assert stub_cupy.state.to_numpy == before, "it has been on the host"
    assert xbridge.to_list(stacked) == [[1.0, 2.0], [1.0, 2.0]]


# -- torch and JAX, with their host memory called a device ---------------------------------------


@pytest.fixture
def pretend(own_registry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors and JAX arrays say that they are on a device; DLPack knows better, and carries them."""
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    for name in ("torch", "jax"):
        backend: Any = get_backend(name)
        told = backend.array_info
        pretended: dict[str, Any] = {
            "array_info": lambda x, told=told: told(x)._replace(device=CUDA),
            "devices": lambda: (xbridge.Device("cpu"), CUDA),
            "resolve_device": lambda device, near: device,
            "fast": replace(backend.fast, to_numpy=lambda x: None),
        }
        by_host = ("to_numpy", "from_numpy", "to_device")
        pretended |= dict.fromkeys(by_host, lambda *_: pytest.fail("it goes by way of the host"))
        for word, value in pretended.items():
            monkeypatch.setattr(backend, word, value)


@pytest.mark.usefixtures("pretend")
def test_to_backend__copies_between_torch_and_jax() -> None:
    """Tensors and JAX arrays on one device are copied, since either side could see changes."""
    import jax.numpy as jnp
    import torch

    t = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    assert plan(t, "jax") == ["torch copy", "torch to_dlpack", "jax from_dlpack"]
    x = xbridge.to_backend(t, "jax")
    t.zero_()
    assert x.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert plan(x, "torch") == ["jax copy", "jax to_dlpack", "torch from_dlpack"]
    back = xbridge.to_backend(x, "torch")
    back += 1
    assert x.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert back.tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert plan(jnp.ones(2), "torch", dtype="float16")[-1] == "torch astype float16"
    assert plan(t.double(), "jax", dtype="float32")[:2] == ["torch astype float32", "torch to_dlpack"]


@pytest.mark.usefixtures("pretend")
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "float16", "bfloat16", "complex64"])
def test_to_backend__torch_jax_round_trip_is_bit_exact(dtype: str) -> None:
    """Every dtype survives the way from torch to JAX and back bit for bit."""
    import torch

    raw = torch.arange(64, dtype=torch.uint8)
    t = raw.bool() if dtype == "bool" else raw.view(getattr(torch, dtype))
    for sent in (t, t[::2], t.reshape(-1, 2).T, t[:0], t[0]):
        back = xbridge.to_backend(xbridge.to_backend(sent, "jax"), "torch")
        assert back.dtype == t.dtype
        assert back.shape == sent.shape
        assert (
            back.contiguous().view(-1).view(torch.uint8).tolist()
            == sent.contiguous().view(-1).view(torch.uint8).tolist()
        )


@pytest.mark.usefixtures("pretend")
def test_to_backend__tracked_and_conjugated_tensors_to_jax() -> None:
    """Tensors that require grad or have a pending conjugate arrive in JAX with their values."""
    import torch

    leaf = torch.ones(2, requires_grad=True)
    assert plan(leaf, "jax") == ["torch detach", "torch copy", "torch to_dlpack", "jax from_dlpack"]
    assert xbridge.to_backend(leaf, "jax").tolist() == [1.0, 1.0]
    z = torch.tensor([1 + 2j]).conj()
    assert plan(z, "jax") == ["torch materialize", "torch to_dlpack", "jax from_dlpack"]
    assert xbridge.to_backend(z, "jax").tolist() == [1 - 2j]
    assert xbridge.to_backend(z.imag, "jax").tolist() == [-2.0]
    with pytest.raises(xbridge.CopyError, match="can change, and jax reads it later"):
        xbridge.to_backend(torch.ones(2), "jax", copy=False)
    with pytest.raises(xbridge.CopyError, match="read-only, and torch has no read-only arrays"):
        xbridge.to_backend(xbridge.to_backend(torch.ones(2), "jax"), "torch", copy=False)
