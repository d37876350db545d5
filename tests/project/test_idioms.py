"""Every row of docs/how-to/migrate.md that has a memory, run: the idiom and its call side by side.

The page is the data. Both cells of a row are executed as they are printed there, on equal sources,
and its memory column is what must be true of both; so the page cannot promise what the library does
not do. Only the sources stand here. Results are compared by routes that pass xbridge by: raw bytes,
NumPy's `shares_memory`, and writes through one side.

Idioms may warn, since torch does; calls may not.
"""

import array
import math
import re
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pins import is_pinned

import xbridge

torch = pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "migrate.md"

Names = dict[str, Any]
"""What the cells of a row may mention; the first is the source whose memory is watched."""

KIND = "emu" if hasattr(torch, "emu") else "cuda"
"""The accelerator: `make test-emulated` runs these tests on the emulated one, with its name in the page."""

gpu = pytest.mark.gpu
needs_device = pytest.mark.skipif(
    KIND == "cuda" and not torch.cuda.is_available(), reason="needs a CUDA device"
)
needs_jax = pytest.mark.skipif(not find_spec("jax"), reason="needs JAX")
needs_dask = pytest.mark.skipif(not find_spec("dask"), reason="needs Dask")
needs_cupy = pytest.mark.skipif(not xbridge.is_available("cupy"), reason="needs a GPU that CuPy can use")


# -- the page ------------------------------------------------------------------------------------


class RecordRow(NamedTuple):
    """One line of a table that sets an idiom beside its call."""

    idiom: str
    call: str
    memory: str


def table_lines(columns: int, section: str = "") -> list[list[str]]:
    """The cells of every table line from a heading on that has so many columns and code in the first."""
    page = PAGE.read_text("utf-8").replace("cuda", KIND)
    text = page.partition(section)[2] if section else page
    lines = (line for line in text.splitlines() if line.startswith("| `"))
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [row for row in cells if len(row) == columns]


def code(cell: str) -> str:
    """The text of a cell that is one piece of code."""
    found = re.fullmatch(r"`([^`]+)`", cell)
    assert found, f"{cell!r} is not one piece of code"
    return found[1]


PAGE_ROWS = {
    code(name): RecordRow(code(idiom), code(call), memory)
    for name, idiom, call, memory, _ in table_lines(columns=5)
}
PAGE_TRAPS = [code(name) for name, _, _ in table_lines(columns=3, section="## The traps")]


# -- the sources ---------------------------------------------------------------------------------


def two_arrays() -> Names:
    return {
        "a": np.linspace(-1.0, 1.0, 6).reshape(2, 3),
        "b": np.linspace(3.0, 4.0, 6).reshape(2, 3),
    }


def int8_array() -> Names:
    return {"c": np.array([[-128, -1, 0], [1, 2, 127]], "int8")}


def tensor() -> Names:
    return {"t": torch.linspace(-1.0, 1.0, 6).reshape(2, 3)}


def int8_tensor() -> Names:
    return {"c": torch.tensor([[-128, -1, 0], [1, 2, 127]], dtype=torch.int8)}


def leaf() -> Names:
    return {"w": tensor()["t"].requires_grad_()}


def non_leaf() -> Names:
    return {"y": leaf()["w"] * 2}


def tensor_and_array() -> Names:
    return {**tensor(), "a": np.linspace(5.0, 6.0, 6, dtype="float32").reshape(2, 3)}


def pinned() -> Names:
    return {"p": tensor()["t"].pin_memory()}


def on_gpu() -> Names:
    return {"g": tensor()["t"].to(KIND), **tensor()}


def leaf_on_gpu() -> Names:
    return {"v": tensor()["t"].to(KIND).requires_grad_()}


def floats() -> Names:
    return {"f": np.linspace(5.0, 6.0, 6, dtype="float32").reshape(2, 3)}


def jax_array() -> Names:
    return {"j": import_module("jax.numpy").array(floats()["f"])}


def dask_array() -> Names:
    return {"x": import_module("dask.array").from_array(two_arrays()["a"], chunks=2) + 1}


def cupy_array() -> Names:
    return {"k": import_module("cupy").asarray(floats()["f"])}


HOST: dict[str, Callable[[], Names]] = {
    "from-numpy": two_arrays,
    "from-numpy-clone": two_arrays,
    "from-numpy-type": two_arrays,
    "from-numpy-int8": int8_array,
    "tensor-of-arrays": two_arrays,
    "numpy": tensor,
    "numpy-copy": tensor,
    "cpu-numpy": tensor,
    "to-cpu-numpy": tensor,
    "detach-numpy": tensor,
    "detach-cpu-numpy": tensor,
    "int8-numpy": int8_tensor,
    "grad-detach-numpy": leaf,
    "grad-detach-cpu-numpy": leaf,
    "grad-cpu-detach-numpy-copy": leaf,
    "grad-fn-detach-numpy": non_leaf,
    "add-in-place": two_arrays,
    "np-add-out": tensor,
    "tolist": tensor,
    "grad-tolist": leaf,
    "two-libraries": tensor_and_array,
}
JAX: dict[str, Callable[[], Names]] = {
    "to-jax": floats,
    "to-jax-nearest": two_arrays,
    "to-jax-device": floats,
    "to-jax-from-tensor": tensor,
    "to-jax-from-grad": leaf,
    "jax-numpy": jax_array,
    "jax-device-get": jax_array,
    "jax-numpy-copy": jax_array,
    "jax-torch": jax_array,
    "jax-tolist": jax_array,
}
DASK: dict[str, Callable[[], Names]] = {
    "to-dask": two_arrays,
    "to-dask-chunks": two_arrays,
    "to-dask-from-tensor": tensor,
    "dask-compute": dask_array,
    "dask-compute-cast": dask_array,
    "dask-torch": dask_array,
    "dask-to-jax": dask_array,
    "dask-tolist": dask_array,
}
GPU: dict[str, Callable[[], Names]] = {
    f"to-{KIND}": two_arrays,
    f"to-{KIND}-non-blocking": pinned,
    f"{KIND}-cpu-numpy": on_gpu,
    f"{KIND}-to-cpu-numpy": on_gpu,
    f"{KIND}-detach-cpu-numpy": leaf_on_gpu,
    f"{KIND}-cpu-detach-numpy-copy": leaf_on_gpu,
    f"{KIND}-tolist": on_gpu,
    "two-devices": on_gpu,
}
CUPY: dict[str, Callable[[], Names]] = {
    "to-cupy": floats,
    "cupy-asnumpy": cupy_array,
    "cupy-get": cupy_array,
    "cupy-tolist": cupy_array,
    "cupy-torch": cupy_array,
    "torch-cupy": on_gpu,
}
SOURCES = HOST | JAX | DASK | GPU | CUPY
MARKS = {
    **{name: [needs_jax] for name in JAX},
    **{name: [needs_jax, needs_dask] for name in DASK},
    **{name: [gpu, needs_device] for name in GPU},
    **{name: [gpu, needs_cupy, needs_device] for name in CUPY},
}

FROM_IMMUTABLE = ("jax-", "dask-")
TO_IMMUTABLE = ("to-jax", "to-dask", "dask-to-jax")
"""How the names of rows begin, whose source or result is an array of JAX or Dask, which cannot be written."""


def rows(*, but: tuple[str, ...] = (), memory: str = "") -> pytest.MarkDecorator:
    """Run a test for the rows with such memory, except for those with such a beginning."""
    names = [name for name in SOURCES if not name.startswith(but)]
    if memory:
        names = [name for name in names if name in PAGE_ROWS and PAGE_ROWS[name].memory == memory]
    return pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, [])) for name in names])


every_row = rows()


# -- running a cell, and looking at what came out ------------------------------------------------


class Run(NamedTuple):
    """A source, and what one cell made of it."""

    source: Any
    result: Any


def run(cell: str, name: str) -> Run:
    """Run a cell on a fresh source."""
    names = SOURCES[name]()
    public = {verb: getattr(xbridge, verb) for verb in xbridge.__all__}
    named = {"jax": "jax", "jnp": "jax.numpy", "da": "dask.array", "cupy": "cupy"}
    modules = {name: import_module(path) for name, path in named.items() if re.search(rf"\b{name}\.", cell)}
    result = eval(cell, {"np": np, "torch": torch, **modules, **public, **names})
    return Run(next(iter(names.values())), result)


def run_idiom(name: str) -> Run:
    """What the tutorials do; torch may warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(PAGE_ROWS[name].idiom, name)


def run_call(name: str) -> Run:
    """What xbridge does; a warning is an error."""
    return run(PAGE_ROWS[name].call, name)


def library(x: Any) -> str:
    """The library of an array; "builtins" for a list."""
    return type(x).__module__.partition(".")[0].replace("jaxlib", "jax")


def on_host(x: Any) -> Any:
    """An array as NumPy's, over the same memory if that is host memory and an array has it."""
    match library(x):
        case "torch":
            return x.detach().cpu().numpy()
        case "dask":
            return x.compute()
        case "cupy":
            return x.get()
    return np.asarray(x)


def raw(x: Any) -> bytes:
    """The bytes of an array's elements in order, or the text of a list."""
    return repr(x).encode() if isinstance(x, list) else bytes(on_host(x).tobytes())


def write(x: Any) -> None:
    """Put into every element a number that no source has."""
    if isinstance(x, list):
        x[0][0] = 7
    elif isinstance(x, torch.Tensor):
        x.detach().fill_(7)
    else:
        x.fill(7)


def overlap(p: Any, q: Any) -> bool:
    """Whether two arrays lie in the same memory; a list never does, nor an array of Dask."""
    if {library(p), library(q)} & {"builtins", "dask"}:
        return False
    places = [device_pointer(x) for x in (p, q)]
    if any(places):
        return places[0] == places[1]
    return np.shares_memory(on_host(p), on_host(q))


def device_pointer(x: Any) -> int:
    """The address of an array's memory on a GPU; 0 if it has none there."""
    if library(x) == "cupy":
        return int(x.data.ptr)
    return x.untyped_storage().data_ptr() if isinstance(x, torch.Tensor) and x.device.type == KIND else 0


def outside(x: Any) -> tuple[object, ...]:
    """Everything about a result but its values."""
    if isinstance(x, list):
        return (list, [[type(number) for number in row] for row in x])
    if isinstance(x, torch.Tensor):
        return (type(x), x.dtype, x.device, tuple(x.shape), x.requires_grad, x.grad_fn is None)
    if library(x) == "dask":
        return (type(x), x.dtype, x.chunks, type(x._meta))
    return (type(x), x.dtype, x.shape, str(getattr(x, "device", "cpu")))


# -- row by row ----------------------------------------------------------------------------------


def test_migrate__every_row_has_a_source() -> None:
    """Each row of the page has a source array to run it on."""
    assert [code(row[0]) for row in table_lines(columns=5)] == list(SOURCES)


def test_migrate__memory_column_uses_known_words() -> None:
    """The memory column has only the words that are tested."""
    assert {row.memory for row in PAGE_ROWS.values()} == {"shared", "shared, read-only", "copied"}


@every_row
def test_migrate__values_agree(name: str) -> None:
    """The idiom and the call give the same values."""
    assert raw(run_call(name).result) == raw(run_idiom(name).result)


@every_row
def test_migrate__types_and_shapes_agree(name: str) -> None:
    """The idiom and the call give the same type, dtype, device and shape."""
    assert outside(run_call(name).result) == outside(run_idiom(name).result)


@every_row
def test_migrate__sources_agree_afterwards(name: str) -> None:
    """The idiom and the call leave the source in the same state."""
    assert raw(run_call(name).source) == raw(run_idiom(name).source)


@every_row
def test_migrate__memory_column_is_true(name: str) -> None:
    """The idiom and the call share memory exactly if the page says so."""
    shared = PAGE_ROWS[name].memory.startswith("shared")

    assert overlap(*run_idiom(name)) is shared
    assert overlap(*run_call(name)) is shared


@rows(but=FROM_IMMUTABLE)
def test_migrate__writes_to_the_source_are_seen(name: str) -> None:
    """A write to the source changes both results if memory is shared, and else neither."""
    shared = PAGE_ROWS[name].memory.startswith("shared")

    for source, result in (run_idiom(name), run_call(name)):
        before = raw(result)
        write(source)
        assert (raw(result) != before) is shared


@rows(but=(*TO_IMMUTABLE, "jax-numpy", "jax-device-get"))
def test_migrate__writes_to_the_idioms_result(name: str) -> None:
    """A write to the result of the idiom changes the source if memory is shared."""
    shared = PAGE_ROWS[name].memory.startswith("shared")
    source, result = run_idiom(name)
    before = raw(source)

    write(result)

    assert (raw(source) != before) is shared


@rows(but=TO_IMMUTABLE)
def test_migrate__writes_to_the_calls_result(name: str) -> None:
    """A write to the result of the call changes the source, or raises if it is read-only."""
    memory = PAGE_ROWS[name].memory
    source, result = run_call(name)
    before = raw(source)

    if memory == "shared, read-only":
        with pytest.raises(ValueError, match="read-only"):
            write(result)
    else:
        write(result)

    assert (raw(source) != before) is (memory == "shared")


@rows(but=FROM_IMMUTABLE, memory="shared, read-only")
def test_migrate__only_the_idiom_writes_tracked_memory(name: str) -> None:
    """The idiom gives a writable view of memory that requires grad; the call gives a read-only one."""
    assert run_idiom(name).result.flags.writeable
    assert not run_call(name).result.flags.writeable
    assert run_call(name).source.requires_grad


@pytest.mark.parametrize("name", ["add-in-place", "np-add-out"])
def test_migrate__in_place_addition_is_seen_on_both_sides(name: str) -> None:
    """An addition in place changes the source and the result."""
    fresh = next(iter(SOURCES[name]().values()))

    for source, result in (run_idiom(name), run_call(name)):
        assert raw(source) == raw(fresh + 1)
        assert raw(result) == raw(fresh + 1)


@gpu
@needs_device
def test_to_numpy__waits_for_queued_gpu_work() -> None:
    """The host array has the values of all work that was queued on the GPU."""
    size = 4096 if KIND == "cuda" else 64
    big = torch.ones(size, size, device=KIND)
    product = big
    for _ in range(8):
        product = product @ big / size

    host = xbridge.to_numpy(product)

    assert (host == 1).all()


# -- the traps -----------------------------------------------------------------------------------

Test = Callable[[], None]
TRAPS: dict[str, Test] = {}


def trap(name: str) -> Callable[[Test], Test]:
    """File a test under the name of its line on the page."""

    def file(test: Test) -> Test:
        assert name not in TRAPS
        TRAPS[name] = test
        return test

    return file


def test_migrate__every_trap_is_tested() -> None:
    """Each trap on the page has a test in this module."""
    assert list(TRAPS) == PAGE_TRAPS


@trap("read-only")
def test_migrate__read_only_array() -> None:
    """`torch.from_numpy` makes read-only memory writable; `to_backend` copies it."""
    a = np.ones(3)
    a.flags.writeable = False

    mine = xbridge.to_backend(a, "torch")
    mine.fill_(7)
    assert (a == 1).all()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = torch.from_numpy(a)
    theirs.fill_(7)
    assert (a == 7).all()


@trap("reversed")
def test_migrate__reversed_array() -> None:
    """`torch.from_numpy` raises for a reversed array; `to_backend` copies it."""
    a = np.arange(3.0)

    with pytest.raises(ValueError, match="negative"):
        torch.from_numpy(a[::-1])

    assert xbridge.to_backend(a[::-1], "torch").tolist() == [2.0, 1.0, 0.0]


@trap("big-endian")
def test_migrate__big_endian_array() -> None:
    """`torch.from_numpy` raises for foreign byte order; `to_backend` swaps the bytes."""
    a = np.arange(3).astype(">f8")

    with pytest.raises(ValueError, match="byte order"):
        torch.from_numpy(a)

    mine = xbridge.to_backend(a, "torch")
    assert mine.dtype is torch.float64
    assert mine.tolist() == [0.0, 1.0, 2.0]


@trap("masked")
def test_migrate__masked_array() -> None:
    """`torch.from_numpy` drops a mask; `to_backend` raises."""
    m = np.ma.masked_array([1.0, 2.0], mask=[False, True])

    assert torch.from_numpy(m).tolist() == [1.0, 2.0]
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"\.filled\("):
        xbridge.to_backend(m, "torch")


@trap("typed-buffer")
def test_migrate__typed_buffer() -> None:
    """`torch.asarray` reads a typed buffer as bytes; `to_backend` shares its numbers."""
    numbers = array.array("d", [1.0, 2.0])

    if is_pinned("torch"):  # 2.15 reads the numbers
        assert torch.asarray(numbers).shape == (4,)

    mine = xbridge.to_backend(numbers, "torch")
    assert (mine.dtype, mine.tolist()) == (torch.float64, [1.0, 2.0])
    mine[0] = 7
    assert numbers[0] == 7


@trap("rounded")
def test_migrate__float64_in_a_buffer() -> None:
    """`torch.tensor` rounds a float64 to float32; `to_backend` keeps it."""
    numbers = array.array("d", [0.1])

    assert torch.tensor(numbers).tolist() != [0.1]
    assert xbridge.to_backend(numbers, "torch").tolist() == [0.1]


@trap("overflow")
def test_migrate__overflow_to_infinity() -> None:
    """A cast in torch turns a large number into infinity; `dtype="default"` raises."""
    a = np.array([1e300])

    assert torch.from_numpy(a).type(torch.float32).tolist() == [math.inf]
    with pytest.raises(xbridge.ValueLossError, match="float32"):
        xbridge.to_backend(a, "torch", dtype="default")


@trap("huge-integers")
def test_migrate__integers_without_a_common_dtype() -> None:
    """`np.asarray` rounds integers that have no common dtype; `asarray` raises."""
    assert np.asarray([-1, 2**63 + 1])[1] == float(2**63)
    with pytest.raises(xbridge.ValueLossError, match="no integer dtype"):
        xbridge.asarray([-1, 2**63 + 1])


@trap("default-device")
def test_migrate__default_device() -> None:
    """`torch.as_tensor` follows the default device; `to_backend` stays on the device of the source."""
    a = np.ones(3)

    with torch.device("meta"):
        assert torch.as_tensor(a).device.type == "meta"
        mine = xbridge.to_backend(a, "torch")

    assert mine.device.type == "cpu"
    assert overlap(a, mine)


@trap("bfloat16")
def test_migrate__bfloat16_tensor() -> None:
    """`Tensor.numpy` raises for bfloat16; `to_numpy` shares it."""
    t = torch.tensor([0x3F80, 0x7FC1], dtype=torch.int16).view(torch.bfloat16)

    with pytest.raises(TypeError, match="BFloat16"):
        t.numpy()

    mine = xbridge.to_numpy(t)
    assert mine.dtype.name == "bfloat16"
    assert np.shares_memory(mine, t.view(torch.int16).numpy())


@trap("negative-bit")
def test_migrate__pending_negation() -> None:
    """`np.from_dlpack` ignores a pending negation; `to_numpy` resolves it."""
    z = torch.tensor([1 + 2j])

    assert np.from_dlpack(z.conj().imag).tolist() == [2.0]
    assert xbridge.to_numpy(z.conj().imag).tolist() == [-2.0]


@trap("expanded")
def test_migrate__expanded_tensor() -> None:
    """`Tensor.numpy` makes repeated memory writable; `to_numpy` makes it read-only."""
    t = torch.zeros(1)

    t.expand(3).numpy()[0] = 7
    assert t.expand(3).tolist() == [7.0, 7.0, 7.0]

    mine = xbridge.to_numpy(t.expand(3))
    assert np.shares_memory(mine, t.numpy())
    with pytest.raises(ValueError, match="read-only"):
        mine[0] = 8


@trap("no-grad")
def test_migrate__no_grad() -> None:
    """`Tensor.numpy` depends on the grad mode; `to_numpy` does not."""
    w = torch.ones(3, requires_grad=True)

    with pytest.raises(RuntimeError, match="requires grad"):
        w.numpy()
    outside_no_grad = xbridge.to_numpy(w)
    with torch.no_grad():
        assert w.numpy().flags.writeable
        inside_no_grad = xbridge.to_numpy(w)

    assert not outside_no_grad.flags.writeable
    assert not inside_no_grad.flags.writeable


@trap("wrong-gradient")
def test_migrate__write_that_breaks_gradients() -> None:
    """A write through `detach().numpy()` corrupts gradients silently; through `to_numpy` it raises."""
    w = torch.zeros(3, requires_grad=True)
    y = w.exp()

    y.detach().numpy()[:] = 0
    y.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [0.0, 0.0, 0.0]

    with pytest.raises(ValueError, match="read-only"):
        xbridge.to_numpy(w.exp())[:] = 0


@trap("snapshot")
def test_migrate__snapshot_of_weights() -> None:
    """`detach().cpu().numpy()` changes with the optimizer; `to_numpy(copy=True)` does not."""
    w = torch.ones(3, requires_grad=True)
    theirs = w.detach().cpu().numpy()
    mine = xbridge.to_numpy(w, copy=True)

    w.grad = torch.ones(3)
    torch.optim.SGD([w], lr=0.5).step()

    assert theirs.tolist() == [0.5, 0.5, 0.5]
    assert mine.tolist() == [1.0, 1.0, 1.0]


@trap("cut-in-list")
def test_migrate__tracked_elements_in_a_list() -> None:
    """`torch.tensor` cuts the graph of a list; `asarray` keeps it."""
    w = torch.ones(2, requires_grad=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not torch.tensor([w[0], w[1]]).requires_grad

    mine = xbridge.asarray([w[0], w[1]], backend="torch")
    mine.backward(torch.tensor([3.0, 5.0]))  # type: ignore[no-untyped-call] # theirs
    assert w.grad is not None
    assert w.grad.tolist() == [3.0, 5.0]


@trap("unfinished")
@gpu
@needs_device
def test_migrate__pinned_memory() -> None:
    """Pinned memory may be overwritten as soon as `to_backend` has returned."""
    p = torch.zeros(1 << 26 if KIND == "cuda" else 1 << 6).pin_memory()

    mine = xbridge.to_backend(p, "torch", device=KIND)
    p.fill_(7)

    assert not mine.any().item()


@trap("jax-alias")
@needs_jax
def test_migrate__jax_aliases_aligned_memory() -> None:
    """`jax.device_put` may alias aligned NumPy memory; `to_jax` copies it."""
    jax = import_module("jax")
    whole = np.zeros(64 + 24, "uint8")
    start = -whole.ctypes.data % 64
    a = whole[start : start + 24].view("float32")

    theirs, mine = jax.device_put(a), xbridge.to_jax(a)
    jax.block_until_ready((theirs, mine))
    a[:] = 7

    assert theirs.tolist() == [7.0] * 6
    assert mine.tolist() == [0.0] * 6


@trap("jax-wraps")
@needs_jax
def test_migrate__jax_wraps_integers() -> None:
    """`jax.numpy.array` wraps a large integer; `to_jax` raises."""
    jax = import_module("jax")
    a = np.array([2**40 + 1])

    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert jax.numpy.array(a).tolist() == [1]
        with pytest.raises(xbridge.DTypeError, match="int64"):
            xbridge.to_jax(a)
        with pytest.raises(xbridge.ValueLossError, match="int32"):
            xbridge.to_jax(a, dtype="nearest")


@trap("jax-changed")
@needs_jax
def test_migrate__jax_array_written_through_torch() -> None:
    """A write through `torch.from_dlpack` changes a JAX array; through `to_torch` it does not."""
    zeros = import_module("jax.numpy").zeros
    j, k = zeros(3), zeros(3)

    torch.from_dlpack(j).fill_(7)
    xbridge.to_torch(k).fill_(7)

    assert (j.tolist(), k.tolist()) == ([7.0] * 3, [0.0] * 3)


@trap("jax-shape")
@needs_jax
def test_migrate__jax_shape_lost_in_torch() -> None:
    """`torch.asarray` flattens a JAX array; `to_torch` keeps its shape."""
    j = jax_array()["j"]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.asarray(j).shape == (6,)

    assert xbridge.to_torch(j).shape == (2, 3)


@trap("jax-bfloat16")
@needs_jax
def test_migrate__bfloat16_tensor_to_jax() -> None:
    """`jax.numpy.asarray` raises for a bfloat16 tensor; `to_jax` converts it."""
    t = torch.tensor([1.5, -0.0], dtype=torch.bfloat16)

    with pytest.raises(TypeError, match="BFloat16"):
        import_module("jax.numpy").asarray(t)

    mine = xbridge.to_jax(t)
    assert mine.dtype.name == "bfloat16"
    assert np.asarray(mine).tobytes() == t.view(torch.int16).numpy().tobytes()


@trap("dask-twice")
@needs_dask
def test_migrate__dask_computes_common_tasks_twice() -> None:
    """Two `compute` calls run common tasks twice; `align` runs them once."""
    runs: list[int] = []

    def load(chunk: Any) -> Any:
        runs.append(1)
        return chunk

    common = import_module("dask.array").ones(3).map_blocks(load, meta=np.empty(0))
    x, y = common + 1, common * 2

    x.compute(), y.compute()
    assert len(runs) == 2
    xbridge.align(x, y, backend="numpy")
    assert len(runs) == 3
