"""Every row of docs/how-to/migrate.md that has a memory, run: the idiom and its call side by side.

The page is the data. Both cells of a row are executed as they are printed there, on equal sources,
and its memory column is what must be true of both; so the page cannot promise what the library does
not do. Only the sources stand here. Results are compared by routes that pass xbridge by: raw bytes,
NumPy's `shares_memory`, and writes through one side.

Idioms may warn, since torch does; calls may not.
"""

import array
import contextlib
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
    return {"a": np.linspace(-1.0, 1.0, 6).reshape(2, 3), "b": np.linspace(3.0, 4.0, 6).reshape(2, 3)}


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

HIDDEN = ("jax-", "dask-")
"""How the names of rows begin whose source is an array of JAX or Dask, which cannot be written."""

FROZEN = ("to-jax", "to-dask", "dask-to-jax")
"""How the names of rows begin whose result is one."""

READ_ONLY_IDIOMS = ("jax-numpy", "jax-device-get")
"""Rows in which the result of the idiom cannot be written."""


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


def run_both(name: str) -> tuple[Run, Run]:
    """What the tutorials do, during which torch may warn; and what xbridge does, which may not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idiom = run(PAGE_ROWS[name].idiom, name)
    return idiom, run(PAGE_ROWS[name].call, name)


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
    """Each row of the page has a source array to run it on, and words that are tested."""
    assert [code(row[0]) for row in table_lines(columns=5)] == list(SOURCES)
    assert {row.memory for row in PAGE_ROWS.values()} == {"shared", "shared, read-only", "copied"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, [])) for name in SOURCES])
def test_migrate__row_is_true(name: str) -> None:
    """The idiom and the call give equal results and leave equal sources, in memory as the page says."""
    memory = PAGE_ROWS[name].memory
    shared = memory.startswith("shared")
    idiom, call = run_both(name)
    assert raw(call.result) == raw(idiom.result)
    assert outside(call.result) == outside(idiom.result)
    assert raw(call.source) == raw(idiom.source)
    for source, result in (idiom, call):
        assert overlap(source, result) is shared
        if not name.startswith(HIDDEN):
            before = raw(result)
            write(source)
            assert (raw(result) != before) is shared
    idiom, call = run_both(name)
    for (source, result), is_ours in ((idiom, False), (call, True)):
        before = raw(source)
        if name.startswith(FROZEN) or (name in READ_ONLY_IDIOMS and not is_ours):
            continue
        if is_ours and memory == "shared, read-only":
            with pytest.raises(ValueError, match="read-only"):
                write(result)
            assert raw(source) == before
            continue
        write(result)
        assert (raw(source) != before) is shared


# -- the traps -----------------------------------------------------------------------------------


def written(x: Any, convert: Callable[[Any], Any], source: Any = None) -> list[float]:
    """The source, after a write to what a conversion has made of it."""
    try:
        write(convert(x))
    except ValueError as error:
        assert "read-only" in str(error)  # noqa: PT017 -- it is one of the outcomes
    return on_host(x if source is None else source).tolist()  # type: ignore[no-any-return] # of NumPy


def locked(a: Any) -> Any:
    a.flags.writeable = False
    return a


def with_one_device(convert: Callable[[Any], Any]) -> str:
    with torch.device("meta"):
        return str(convert(np.ones(3)).device.type)


def without_gradients(convert: Callable[[Any], Any]) -> list[object]:
    """Whether the view of a leaf can be written, with gradients and without them."""
    found: list[object] = []
    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            found.append(outcome(lambda: convert(torch.ones(3, requires_grad=True)).flags.writeable))
    return found


def gradient(convert: Callable[[Any], Any]) -> list[float]:
    """A gradient, after a write to what was made of a value that it needs."""
    w = torch.zeros(3, requires_grad=True)
    y = w.exp()
    with contextlib.suppress(ValueError):
        convert(y).fill(0)
    y.sum().backward()
    assert w.grad is not None
    return w.grad.tolist()  # type: ignore[no-any-return] # of torch


def snapshot(convert: Callable[[Any], Any]) -> list[float]:
    w = torch.ones(3, requires_grad=True)
    kept = convert(w)
    with torch.no_grad():
        w -= 0.5  # as an optimizer would
    return kept.tolist()  # type: ignore[no-any-return] # of NumPy


def unfinished(convert: Callable[[Any], Any]) -> bool:
    """Whether a write to pinned memory after a call reaches its result."""
    p = torch.zeros(1 << 26 if KIND == "cuda" else 1 << 6).pin_memory()
    made = convert(p)
    p.fill_(7)
    return bool(made.any().item())


def aligned_alias(convert: Callable[[Any], Any]) -> list[float]:
    """What JAX has made of memory to which it could refer, after a write to that."""
    whole = np.zeros(64 + 24, "uint8")
    start = -whole.ctypes.data % 64
    a = whole[start : start + 24].view("float32")
    made = import_module("jax").block_until_ready(convert(a))
    a[:] = 7
    return made.tolist()  # type: ignore[no-any-return] # of JAX


def wrapped(convert: Callable[[Any], Any]) -> Any:
    with import_module("jax").enable_x64(False):
        return convert(np.array([2**40 + 1])).tolist()


def dask_runs(compute: Callable[[Any, Any], object]) -> int:
    """How often a task that two arrays have in common is run."""
    runs: list[int] = []

    def load(chunk: Any) -> Any:
        runs.append(1)
        return chunk

    common = import_module("dask.array").ones(3).map_blocks(load, meta=np.empty(0))
    compute(common + 1, common * 2)
    return len(runs)


def jnp() -> Any:
    return import_module("jax.numpy")


to_torch, to_numpy = xbridge.to_torch, xbridge.to_numpy
DOUBLES, MASKED = array.array("d", [0.1, 2.0]), np.ma.masked_array([1.0, 2.0], mask=[False, True])
BRAIN = torch.tensor([0x3F80, 0x7FC1], dtype=torch.int16).view(torch.bfloat16)
SIGNED, LEAF = torch.tensor([1 + 2j]).conj().imag, torch.ones(2, requires_grad=True)
LOSS = xbridge.ValueLossError

TRAPS: dict[str, tuple[Callable[[], Any], Any, Callable[[], Any], Any]] = {
    "read-only": (
        *(lambda: written(locked(np.ones(3)), torch.from_numpy), [7.0] * 3),
        *(lambda: written(locked(np.ones(3)), to_torch), [1.0] * 3),
    ),
    "reversed": (
        *(lambda: torch.from_numpy(np.arange(3.0)[::-1]), ValueError),
        *(lambda: to_torch(np.arange(3.0)[::-1]).tolist(), [2.0, 1.0, 0.0]),
    ),
    "big-endian": (
        *(lambda: torch.from_numpy(np.arange(3).astype(">f8")), ValueError),
        *(lambda: to_torch(np.arange(3).astype(">f8")).tolist(), [0.0, 1.0, 2.0]),
    ),
    "masked": (
        *(lambda: torch.from_numpy(MASKED).tolist(), [1.0, 2.0]),
        *(lambda: to_torch(MASKED), xbridge.UnsupportedArrayError),
    ),
    "typed-buffer": (
        # torch 2.15 reads the numbers
        *(lambda: torch.asarray(DOUBLES).dtype, torch.float32 if is_pinned("torch") else torch.float64),
        *(lambda: to_torch(DOUBLES).dtype, torch.float64),
    ),
    "rounded": (
        *(lambda: torch.tensor(DOUBLES).tolist() == [0.1, 2.0], False),
        *(lambda: to_torch(DOUBLES).tolist() == [0.1, 2.0], True),
    ),
    "overflow": (
        *(lambda: torch.from_numpy(np.array([1e300])).type(torch.float32).tolist(), [math.inf]),
        *(lambda: to_torch(np.array([1e300]), dtype="default"), LOSS),
    ),
    "huge-integers": (
        *(lambda: np.asarray([-1, 2**63 + 1])[1] == float(2**63), True),
        *(lambda: xbridge.asarray([-1, 2**63 + 1]), LOSS),
    ),
    "default-device": (
        *(lambda: with_one_device(torch.as_tensor), "meta"),
        *(lambda: with_one_device(to_torch), "cpu"),
    ),
    "bfloat16": (
        *(BRAIN.numpy, TypeError),
        *(lambda: to_numpy(BRAIN).tobytes(), BRAIN.view(torch.int16).numpy().tobytes()),
    ),
    "negative-bit": (
        *(lambda: np.from_dlpack(SIGNED).tolist(), [2.0]),
        *(lambda: to_numpy(SIGNED).tolist(), [-2.0]),
    ),
    "expanded": (
        *(lambda: written(torch.zeros(1).expand(3), torch.Tensor.numpy), [7.0] * 3),
        *(lambda: written(torch.zeros(1).expand(3), to_numpy), [0.0] * 3),
    ),
    "no-grad": (
        *(lambda: without_gradients(torch.Tensor.numpy), [RuntimeError, True]),
        *(lambda: without_gradients(to_numpy), [False, False]),
    ),
    "wrong-gradient": (
        *(lambda: gradient(lambda y: y.detach().numpy()), [0.0] * 3),
        *(lambda: gradient(to_numpy), [1.0] * 3),
    ),
    "snapshot": (
        *(lambda: snapshot(lambda w: w.detach().cpu().numpy()), [0.5] * 3),
        *(lambda: snapshot(lambda w: to_numpy(w, copy=True)), [1.0] * 3),
    ),
    "cut-in-list": (
        *(lambda: torch.tensor([LEAF[0], LEAF[1]]).requires_grad, False),
        *(lambda: xbridge.asarray([LEAF[0], LEAF[1]], backend="torch").requires_grad, True),
    ),
    "unfinished": (
        *(lambda: None, None),  # it may have been copied in time
        *(lambda: unfinished(lambda p: to_torch(p, device=KIND)), False),
    ),
    "jax-alias": (
        *(lambda: aligned_alias(import_module("jax").device_put), [7.0] * 6),
        *(lambda: aligned_alias(xbridge.to_jax), [0.0] * 6),
    ),
    "jax-wraps": (
        *(lambda: wrapped(jnp().array), [1]),
        *(lambda: wrapped(lambda a: xbridge.to_jax(a, dtype="nearest")), LOSS),
    ),
    "jax-changed": (
        *(lambda: written(jnp().zeros(3), torch.from_dlpack), [7.0] * 3),
        *(lambda: written(jnp().zeros(3), to_torch), [0.0] * 3),
    ),
    "jax-shape": (
        *(lambda: torch.asarray(jax_array()["j"]).shape, (6,)),
        *(lambda: to_torch(jax_array()["j"]).shape, (2, 3)),
    ),
    "jax-bfloat16": (
        *(lambda: jnp().asarray(BRAIN), TypeError),
        *(lambda: raw(xbridge.to_jax(BRAIN)), BRAIN.view(torch.int16).numpy().tobytes()),
    ),
    "dask-twice": (
        *(lambda: dask_runs(lambda x, y: (x.compute(), y.compute())), 2),
        *(lambda: dask_runs(lambda x, y: xbridge.align(x, y, backend="numpy")), 1),
    ),
}
"""What an idiom gives, and what the call gives: a value, or the class of an error."""


def outcome(do: Callable[[], Any]) -> object:
    """What a function returns, or the class of what it raises."""
    try:
        return do()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        return type(error)


def test_migrate__every_trap_is_tested() -> None:
    """Each trap on the page has a test in this module."""
    assert list(TRAPS) == PAGE_TRAPS


TRAP_MARKS = {"jax": [needs_jax], "dask": [needs_dask], "unfinished": [gpu, needs_device]}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=TRAP_MARKS.get(name.partition("-")[0], [])) for name in TRAPS]
)
def test_migrate__trap_is_one_of_the_idiom_alone(name: str) -> None:
    """The idiom gives a wrong result or raises, and the call does not."""
    idiom, theirs, call, ours = TRAPS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert outcome(idiom) == theirs
    assert outcome(call) == ours
