"""CuPy, torch and JAX on a real GPU: memory changes hands there, in order, and nothing passes by the host.

Everything here is skipped where there is no GPU. Aliasing is shown by writing through one side, and order by
work that is still running when the memory is handed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import get_backend, native_dtype

import xbridge

if TYPE_CHECKING:
    from collections.abc import Callable

cupy: Any = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")
if not (xbridge.is_available("cupy") and torch.cuda.is_available()):
    pytest.skip("needs a GPU, and a torch that can use it", allow_module_level=True)

pytestmark = pytest.mark.gpu
SHAPES: list[tuple[int, ...]] = [(), (0,), (5,), (3, 4), (2, 3, 4)]
DTYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64"]


def tensor(shape: tuple[int, ...] = (3, 4), dtype: str = "float32") -> Any:
    count = int(np.prod(shape, dtype=int))
    return torch.arange(count, device="cuda").reshape(shape).to(getattr(torch, dtype))


def verbs(x: object, target: str, **options: Any) -> list[str]:
    return [f"{step.backend} {step.op}" for step in xbridge.explain(x, target, **options).steps]


def busy() -> None:
    """Some milliseconds of work on torch's current stream."""
    a = torch.ones(4096, 4096, device="cuda")
    for _ in range(8):
        a = a @ a * 1e-4


# -- CuPy and the host ---------------------------------------------------------------------------


def test_to_backend__transfer_is_complete_on_return() -> None:
    """The source may be written after the call, and a result waits for its stream."""
    a = np.ones(1 << 24, "f4")
    x = xbridge.to_backend(a, "cupy")
    a[:] = -1
    assert float(x.min()) == 1.0
    with cupy.cuda.Stream(non_blocking=True):
        y = x * 2
        assert xbridge.to_numpy(y).min() == 2.0


@pytest.mark.parametrize(
    ("dtype", "other"),
    [
        *(("float32", other) for other in ("float64", "complex128", "complex64", "bool", "bfloat16")),
        *(("complex64", other) for other in ("complex128", "bool")),
        *(("float64", other) for other in ("float32", "complex64", "bfloat16")),
        *(("bfloat16", other) for other in ("float32", "float64", "complex64", "bool")),
        ("complex128", "complex64"),
    ],
)
def test_to_backend__cast_keeps_subnormals(dtype: str, other: str) -> None:
    """A cast on the GPU keeps subnormal numbers as NumPy does."""
    lacks = get_backend("cupy").unsupported_dtype("bfloat16", xbridge.Device("cuda:0"))
    if lacks and "bfloat16" in (dtype, other):
        pytest.skip("CuPy is older than 14")
    here, there = native_dtype(dtype), native_dtype(other)
    bits = np.arange(0, 1 << 24, 997, dtype=np.uint32)
    line = np.concatenate([bits, bits | 1 << 31]).view("f4").astype(here)
    if dtype in ("float64", "complex128"):
        line = np.concatenate([line, line * 1.0000001, line * 0.49999999])
    values = line[: line.size // 4 * 4].reshape(4, -1)
    for view in (values, values.T, values[::-2], values[0, 0, ...]):
        made = xbridge.to_backend(xbridge.to_backend(view, "cupy"), "cupy", dtype=other)
        assert xbridge.to_numpy(made).tobytes() == np.asarray(view.astype(there)).tobytes()


# -- CuPy and torch ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_to_backend__torch_and_cupy_share_memory(dtype: str) -> None:
    """torch and CuPy share memory in both directions."""
    for shape in SHAPES:
        t = tensor(shape, dtype)
        x = xbridge.to_backend(t, "cupy")
        assert (x.shape, str(x.dtype)) == (tuple(t.shape), dtype)
        back = xbridge.to_backend(x, "torch")
        assert torch.equal(back, t)
        if t.numel():
            assert x.data.ptr == t.data_ptr() == back.data_ptr()
            x[...] = 1
            assert bool((t == 1).all())
            t.zero_()
            assert not bool(x.any())
            assert xbridge.shares_memory(t, x)


def test_to_backend__never_passes_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between torch and CuPy, no byte goes through host memory."""
    for name in ("torch", "cupy"):
        for verb in ("to_numpy", "from_numpy"):
            monkeypatch.setattr(get_backend(name), verb, lambda *_: pytest.fail("it went to the host"))
    t = tensor()
    assert verbs(t, "cupy") == ["torch to_dlpack", "cupy from_dlpack"]
    x = xbridge.to_backend(t, "cupy")
    xbridge.to_backend(x, "torch", dtype="float64")
    xbridge.asarray([x, x], backend="torch")
    xbridge.align(t, x)


@pytest.mark.parametrize("way", ["to cupy", "to torch"])
def test_to_backend__orders_both_streams(way: str) -> None:
    """The receiving stream waits for work that is pending on the other one."""
    mine, theirs = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    for _ in range(5):
        if way == "to cupy":
            with torch.cuda.stream(mine), theirs:
                t = torch.zeros(1 << 20, device="cuda")
                busy()
                t.fill_(3)
                total = float(xbridge.to_backend(t, "cupy").sum())
        else:
            with torch.cuda.stream(mine), theirs:
                x = cupy.zeros(1 << 20, "f4")
                for _ in range(200):
                    x += 0.015625
                x[...] = 3
                total = float(xbridge.to_backend(x, "torch").sum())
        assert total == 3.0 * (1 << 20)


def test_transfer__waits_for_the_callers_stream() -> None:
    """A worker thread reads only after the pending work of the calling thread."""
    for _ in range(5):
        with cupy.cuda.Stream(non_blocking=True):
            x = cupy.zeros(1 << 20, "f4")
            for _ in range(200):
                x += 0.015625
            x[...] = 3
            tensor, array = (xbridge.transfer([x], to) for to in ("torch", "numpy"))
            (there,) = xbridge.transfer([np.full(1 << 20, 3, "f4")], "cupy").result()
            assert float(there.sum()) == array.result()[0].sum() == 3.0 * (1 << 20)
        assert float(tensor.result()[0].sum()) == 3.0 * (1 << 20)


def test_to_backend__copy_precedes_later_writes() -> None:
    """A copy does not see what is written to its source after the call."""
    with torch.cuda.stream(torch.cuda.Stream()), cupy.cuda.Stream(non_blocking=True):
        for options in ({"copy": True}, {"dtype": "float64"}):
            t = torch.ones(1 << 22, device="cuda")
            busy()
            x = xbridge.to_backend(t, "cupy", **options)
            t.zero_()
            assert float(x.min()) == 1.0


# -- JAX -----------------------------------------------------------------------------------------


@pytest.fixture
def jax() -> Any:
    module = pytest.importorskip("jax")
    if xbridge.Device("cuda:0") not in get_backend("jax").devices():
        pytest.skip("needs a JAX that can use the GPU, by JAX_PLATFORMS=cpu,cuda")
    return module


@pytest.mark.parametrize("dtype", [word for word in DTYPES if word not in ("int64", "float64")])
def test_to_backend__jax_copies_on_the_device(jax: Any, dtype: str) -> None:
    """To and from JAX, memory is copied on the device, so no array of JAX is ever written."""
    for shape in SHAPES:
        t = tensor(shape, dtype)
        sources: list[tuple[Any, str]] = [(t, "torch"), (xbridge.to_backend(t, "cupy", copy=True), "cupy")]
        for source, name in sources:
            assert verbs(source, "jax") == [f"{name} copy", f"{name} to_dlpack", "jax from_dlpack"]
            there = xbridge.to_backend(source, "jax")
            assert xbridge.device_of(there) == "cuda:0"
            want = xbridge.to_numpy(source)
            source[...] = 0
            assert np.array_equal(np.asarray(there), want)
            back = xbridge.to_backend(there, name)
            back[...] = 1
            assert np.array_equal(np.asarray(there), want), "an array of JAX was written"
            t = tensor(shape, dtype)


def test_to_backend__jax_and_torch_wait_for_each_other(jax: Any) -> None:
    """JAX waits for torch's stream, and torch for JAX's."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(5):
            t = torch.zeros(1 << 20, device="cuda")
            busy()
            t.fill_(2)
            x = xbridge.to_backend(t, "jax")
            t.zero_()
            y = jax.jit(lambda x: (x @ x) * 0 + x)(jax.numpy.tile(x[:1024], (1024, 1)))
            assert float(xbridge.to_backend(y, "torch").sum()) == 2.0 * 1024 * 1024


# -- exporters -----------------------------------------------------------------------------------


class Shows:
    """An exporter of one protocol and nothing else."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.__dlpack__, self.__dlpack_device__ = x.__dlpack__, x.__dlpack_device__


@pytest.mark.parametrize("target", ["torch", "cupy"])
@pytest.mark.parametrize("make", [tensor, lambda: cupy.arange(12.0).reshape(3, 4)], ids=["torch", "cupy"])
def test_to_backend__shares_memory_of_exporters(make: Callable[[], Any], target: str) -> None:
    """The memory of an exporter is shared, and copied on request."""
    x = make()
    got = xbridge.to_backend(Shows(x), target)
    got[0, 0] = 42
    assert float(x[0, 0]) == 42.0
    assert np.array_equal(xbridge.to_numpy(Shows(x)), xbridge.to_numpy(x))
    copied = xbridge.to_backend(Shows(x), target, copy=True)
    copied[0, 0] = 0
    assert float(x[0, 0]) == 42.0


# -- several devices -----------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_to_backend__works_on_the_second_device() -> None:
    """Memory on another device than the current one is shared, and the current one is kept."""
    t = torch.arange(4.0, device="cuda:1")
    x = xbridge.to_backend(t, "cupy", copy=False)
    assert xbridge.device_of(x) == "cuda:1"
    assert xbridge.to_list(xbridge.to_backend(x, "cupy", device="cuda:0")) == [0.0, 1.0, 2.0, 3.0]
    assert xbridge.to_backend(x, "torch", copy=False).data_ptr() == t.data_ptr()
    assert torch.cuda.current_device() == 0
