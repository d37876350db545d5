"""Calls that do not fit a function raise an error of ours with the call to type, and tracebacks are short."""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from exporters import Exporter

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable

A = np.arange(3.0)
Y = np.ones(2, "float32")
NAMES: dict[str, Any] = {name: getattr(xbridge, name) for name in xbridge.__all__}
NAMES |= {"A": A, "x": A, "y": Y, "Y": Y, "xs": (A, Y)}
NAMES |= {"np": np, "numpy": np, "xbridge": xbridge, "tree": tree}


def fn(x: Any, *others: Any, axis: int = 0) -> Any:
    """A function of any arguments."""
    return x


NAMES |= {
    "fn": fn,
    "Path": Path,
    "restored": lambda *args, **options: xbridge.align_back(A)[1](A, *args, **options),
}

CALLS = {
    "to_backend(A, 'numpy', 'float32')": "to_backend(x, 'numpy', dtype='float32')",
    "to_backend(A, 'numpy', like=Y)": "asarray(x, like=y)",
    "to_backend(A)": "to_backend(x, 'torch')",
    "to_backend(A, 'numpy', dtyp='int8', copy=True)": "to_backend(x, 'numpy', copy=True, dtype='int8')",
    "to_backend(A, 'numpy', map_location='cpu')": "to_backend(x, 'numpy', device='cpu')",
    "to_backend(A, 'numpy', writable=True)": "to_numpy(x, writable=True)",
    "to_backend(A, 'numpy', non_blocking=True, device='cpu')": "transfer(x, 'numpy', device='cpu')",
    "to_numpy(A, np.float32)": "to_numpy(x, dtype='float32')",
    "to_numpy(A, True)": "to_numpy(x, copy=True)",
    "to_numpy(A, force=True)": "to_numpy(x)",
    "to_numpy()": "to_numpy(x)",
    "array_namespace(A, xp=np)": "array_namespace(*xs)",
    "shares_memory(A)": "shares_memory(x, y)",
    "to_torch(A, A)": "align(x, y, backend='torch')",
    "to_torch(*[A] * 9)": "align(x, y, backend='torch')",
    "to_torch(A, 'cpu', 'float32', True)": "to_torch(x, device='cpu', dtype='float32', copy=True)",
    "to_torch(A, 'float32', copy=True)": "to_torch(x, copy=True, dtype='float32')",
    "to_numpy(A, astype='float32')": "to_numpy(x, dtype='float32')",
    "policy(all='raise')": "policy(copies='raise')",
    "to_torch(A, requires_grad=True)": "asarray(x, backend='torch', requires_grad=True)",
    "to_torch(A, pin_memory=True)": "transfer(x, 'torch')",
    "asarray(A, 'numpy')": "asarray(x, backend='numpy')",
    "asarray(A, Y)": "asarray(x, like=y)",
    "align(A, Y, gard='detach')": "align(*xs, grad='detach')",
    "transfer(A, 'numpy', 'float32')": "transfer(x, 'numpy', dtype='float32')",
    "prefetch([A], 'numpy', 4)": "prefetch(x, 'numpy', depth=4)",
    "aligned(fn, 'numpy')": "aligned(fn, backend='numpy')",
    "aligned(fn, A)": "aligned(fn, like=y)",
    "aligned(fn, backward=fn)": "aligned(fn, vjp=fn)",
    "to_numpy(A, readonly=True)": "to_numpy(x, writable=False)",
    "to_numpy(A, detach=True)": "to_numpy(x, grad='detach')",
    "tree.map(fn, [A], is_leaf=None)": "xbridge.tree.map(fn, x)",
    "policy(device='raise')": "policy(transfers='raise')",
    "tree.to_backend([A])": "xbridge.tree.to_backend(x, 'torch')",
    "tree.map([A])": "xbridge.tree.map(fn, x)",
    "tree.to_torch([A], backend='numpy', copy=True)": "xbridge.tree.to_backend(x, 'numpy', copy=True)",
    "tree.to_torch([A], writable=True)": "xbridge.tree.to_numpy(x, writable=True)",
    "tree.to_torch([A], pin_memory=True)": "transfer(x, 'torch')",
    # options of one target only are left out
    "to_numpy(A, writable=True, non_blocking=True)": "transfer(x, 'numpy')",
    "to_torch(A, order='C', non_blocking=True)": "transfer(x, 'torch')",
    "tree.to_torch([A], movables=True, copy=True, pin_memory=True)": "transfer(x, 'torch', copy=True)",
    "tree.to_numpy([A], writable=True, backend='torch')": "xbridge.tree.to_backend(x, 'torch')",
    "tree.to_torch([A], movables=True, backend='numpy')": "xbridge.tree.to_backend(x, 'numpy')",
    "tree.to_numpy([A], device='cpu')": "xbridge.tree.to_numpy(x)",
    "restored(0, 'float32')": "restore(x, dtype='float32')",
    "record(True)": "record(foreign=True)",
    "is_available()": "is_available('torch')",
}
"""Calls that do not fit, and the call to type."""


@pytest.mark.parametrize("call", CALLS)
def test_callerror__hint_is_a_valid_call(call: str) -> None:
    """A call that does not match the signature raises `CallError` with a call that does."""
    with pytest.raises(xbridge.CallError) as caught:
        eval(call, dict(NAMES))
    assert caught.value.hint == CALLS[call]
    assert str(caught.value).endswith(f"; try {caught.value.hint}")
    assert isinstance(caught.value, TypeError)
    assert caught.value.__cause__ is None


def test_callerror__second_tree_is_no_option() -> None:
    """A function of trees says that it takes one, and not that its options are keywords."""
    with pytest.raises(xbridge.CallError, match=r"tree\.map takes one tree; try xbridge\.tree\.map\(fn, x\)"):
        tree.map(fn, [A], [A])  # type: ignore[call-arg, arg-type] # that is the mistake
    with pytest.raises(xbridge.CallError, match="takes its options by keyword"):
        tree.to_torch([A], "cuda")  # type: ignore[call-arg] # that is the mistake


@pytest.mark.parametrize("hint", sorted(set(CALLS.values()) - {"restore(x, dtype='float32')"}))
def test_callerror__hint_runs(hint: str) -> None:
    """Every call that `CallError` suggests can be run as it is."""
    names = {**NAMES, "x": A}
    for library in ("torch", "jax", "dask"):
        if library in hint:
            names[library] = pytest.importorskip(library)
    if "tree" in hint or "prefetch" in hint:
        names["x"] = [A]
    if "vjp=f)" in hint:
        names["f"] = fn
    try:
        eval(hint, names)
    except xbridge.DeviceError:
        assert "device=0" in hint  # of a machine with an accelerator


VERBS = ["to_backend", "to_numpy", "to_torch", "to_jax", "asarray", "align", "to_list", "explain", "transfer"]


@pytest.mark.parametrize("name", VERBS)
def test_verbs__show_their_own_signature(name: str) -> None:
    """`inspect` shows each public function with its own parameters, source and docstring."""
    fn = getattr(xbridge, name)
    parameters = inspect.signature(fn).parameters
    assert not {"more", "other"} & parameters.keys()
    assert parameters.keys() - {"args", "kwargs"} == fn.__annotations__.keys() - {"return", "args", "kwargs"}
    assert f"def {name}(" in inspect.getsource(fn)
    assert fn.__doc__
    assert fn.__qualname__ == name


def raises(_: object = None) -> None:
    raise TypeError("of the caller")


def test_callerror__not_raised_for_errors_in_callbacks() -> None:
    """A `TypeError` raised inside the caller's own function is not replaced."""
    with pytest.raises(TypeError, match="of the caller") as caught:
        tree.map(raises, [A])
    assert not isinstance(caught.value, xbridge.XBridgeError)
    assert "raises" in frames(caught.value)


def frames(error: BaseException) -> list[str]:
    """The names of the functions in a traceback, without those of this test."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)][1:]


def fails(*_: object) -> object:
    return xbridge.to_numpy({})


FAILING: dict[str, tuple[Callable[[], object], list[str]]] = {
    "to_torch": (lambda: xbridge.to_torch({}), ["<lambda>", "to_torch"]),
    "to_numpy": (lambda: xbridge.to_numpy({}, writable=True), ["<lambda>", "to_numpy"]),
    "to_jax": (lambda: xbridge.to_jax({}), ["<lambda>", "to_jax"]),
    "asarray": (lambda: xbridge.asarray({}), ["<lambda>", "asarray"]),
    "align": (lambda: xbridge.align(A, {}), ["<lambda>", "align"]),
    "tree": (lambda: tree.to_numpy([A * 1j], dtype="int8"), ["<lambda>", "to_numpy"]),
    "missing": (lambda: xbridge.to_backend(A, "cupy"), ["<lambda>", "to_backend"]),
    "transfer": (lambda: xbridge.transfer([A * 1j], "numpy", dtype="int8").result(), ["<lambda>", "result"]),
    "prefetch": (
        lambda: [*xbridge.prefetch([A * 1j], "numpy", dtype="int8")],
        ["<lambda>", "_prefetch_batches"],
    ),
    "nested": (lambda: xbridge.aligned(backend="numpy")(fails)(A), ["<lambda>", "call", "fails", "to_numpy"]),
    "mapped": (lambda: tree.map(fails, [A]), ["<lambda>", "map", "fails", "to_numpy"]),
}
if xbridge.is_available("cupy"):
    del FAILING["missing"]


@pytest.mark.parametrize("verb", FAILING)
def test_traceback__has_one_frame_per_call(verb: str) -> None:
    """A traceback shows the caller's frames and one frame per call into xbridge."""
    do, names = FAILING[verb]
    for library in ("torch", "jax"):
        if library in verb:
            pytest.importorskip(library)
    with pytest.raises(xbridge.XBridgeError) as caught:
        do()
    assert frames(caught.value) == names


def test_traceback__keeps_frames_of_the_cause() -> None:
    """An exception of another library remains the cause and keeps its own frames."""

    def export() -> object:
        raise ValueError("of the library")

    with pytest.raises(xbridge.UnsupportedArrayError) as caught:
        xbridge.align(A, Exporter(__array__=export))
    cause = caught.value.__cause__
    assert type(cause) is ValueError
    assert "export" in [frame.name for frame in traceback.extract_tb(cause.__traceback__)]
    files = [frame.filename for frame in traceback.extract_tb(cause.__traceback__)]
    assert not any("xbridge/_" in file for file in files)


def test_xbridge_traceback__full_keeps_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """`XBRIDGE_TRACEBACK=full` shows the internal frames as well."""
    monkeypatch.setenv("XBRIDGE_TRACEBACK", "full")
    with pytest.raises(xbridge.UnsupportedArrayError) as caught:
        xbridge.to_numpy({})
    assert len(frames(caught.value)) > 4


def test_align__list_of_numbers_is_one_array() -> None:
    """A list without arrays is one argument, empty or not; other things in it are refused by their place."""
    assert [y.tolist() for x in ([], [1.0, 2.0]) for y in xbridge.align(x)] == [[], [1.0, 2.0]]
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"^at xs\[0\]: "):
        xbridge.align([object()])
    with pytest.raises(xbridge.DTypeError, match=r"^at xs\[0\]: "):  # before the list is made
        xbridge.align(A.astype("c8"), [[1], 2], dtype="float32")


def test_align__mapping_names_the_dtype_of_lists_too() -> None:
    """A mapping of dtypes holds for what a list would be, whether of numbers, of arrays or empty."""
    narrow = {"float64": "float32", "int64": "int32"}
    for _ in range(2):
        made = xbridge.align([1.0, 2.0], [1, 2], [], [A, A], A, backend="numpy", dtype=narrow)
        assert [x.dtype.name for x in made] == ["float32", "int32", "float32", "float32", "float32"]


ORDERS: dict[str, tuple[type[xbridge.XBridgeError], str]] = {
    "to_backend(A, np.float32)": (xbridge.UnknownBackendError, "backend='torch', dtype='float32'"),
    "align((A, A))": (xbridge.OptionError, "align(*xs)"),
    "align(A, 'numpy')": (xbridge.OptionError, "backend='numpy'"),
    "align(A, 'cuda:1')": (xbridge.OptionError, "device='cuda:1'"),
    "align(A, 'float32')": (xbridge.OptionError, "dtype='float32'"),
    "align(A, 'three')": (xbridge.UnsupportedArrayError, ""),
    "to_numpy('a.npy')": (xbridge.UnsupportedArrayError, "numpy.load(x)"),
    "to_numpy(np.sin)": (xbridge.UnsupportedArrayError, ""),
    "align(A, np.float32)": (xbridge.OptionError, "dtype='float32'"),
    "align(A, np.ndarray)": (xbridge.UnsupportedArrayError, ""),
    "align_back([A, A])": (xbridge.OptionError, "align_back(*xs)"),
    "restored(to='numpy')": (xbridge.OptionError, "to_backend(x, 'numpy')"),
    "explain(fn)": (xbridge.CallError, "explain(fn, x)"),
    "aligned('numpy')": (xbridge.OptionError, "@aligned(backend='numpy')"),
    "to_numpy(A, dtype='torch')": (xbridge.DTypeError, "asarray(x, backend='torch')"),
    "to_torch(A, device='torch')": (xbridge.DeviceError, "asarray(x, backend='torch')"),
    "device_of([A])": (xbridge.UnsupportedArrayError, "device_of(x[0])"),
    "array_namespace([A, A])": (xbridge.UnsupportedArrayError, "array_namespace(*x)"),
    "to_backend(A, 'cuda')": (xbridge.UnknownBackendError, "backend='torch', device='cuda'"),
    "transfer('numpy', A)": (xbridge.UnknownBackendError, "transfer(x, 'numpy')"),
    "asarray(A, like=[A])": (xbridge.OptionError, "like=y[0]"),
    "aligned(backend='nunpy')": (xbridge.UnknownBackendError, "'numpy'"),
    "register_backend('mylib')": (xbridge.CallError, "register_backend('mylib', module)"),
    "to_numpy(A, copy='False')": (xbridge.OptionError, "copy=False"),
    "backend_of(np)": (xbridge.UnsupportedArrayError, ""),
    "asarray(['2020-01-01'])": (xbridge.UnsupportedArrayError, ""),
    "asarray(['b', 'a'])": (xbridge.UnsupportedArrayError, ""),
    "aligned(grad=fn)": (xbridge.OptionError, "aligned(vjp=f)"),
    "prefetch('abc', 'numpy')": (xbridge.OptionError, "[batch]"),
    "to_dask(A, 2)": (xbridge.CallError, "to_dask(x)"),
}
"""Calls that fit, with arguments in the wrong place, the error, and its hint."""


@pytest.mark.parametrize("call", ORDERS)
def test_callerror__suggests_swapped_arguments(call: str) -> None:
    """A value passed to the wrong parameter is moved to the right one in the hint."""
    if call.startswith("to_torch"):
        pytest.importorskip("torch")
    error, hint = ORDERS[call]
    with pytest.raises(error) as caught:
        eval(call, dict(NAMES))
    assert caught.value.hint == hint


@pytest.mark.parametrize("module", [xbridge, tree])
def test_getattr__lets_python_suggest_a_similar_name(module: Any) -> None:
    """The error of a misspelled name tells Python where to look for the one that was meant."""
    with pytest.raises(AttributeError, match=r"has no attribute 'to_nunpy'$") as caught:
        _ = module.to_nunpy
    assert (caught.value.obj, caught.value.name) == (module, "to_nunpy")
    assert "to_numpy" in dir(module)
