"""What `explain` says of a conversion is what then happens, and to say it reads nothing."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from dataclasses import FrozenInstanceError
from html import escape
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fresh import run
from hypothesis import event, given, settings
from strategies import Conversion, conversions

import xbridge
from xbridge import explain
from xbridge.testing.conformance._cases import disjoint, memory_of, same_memory
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from xbridge import Plan


# -- every claim, and what then happened ---------------------------------------------------------


def outcome(call: Conversion) -> Any:
    """The result of the conversion, or what it raises."""
    try:
        return xbridge.to_backend(call.array, call.target, **call.options)
    except xbridge.XBridgeError as error:
        return error


@settings(max_examples=40)
@given(conversions())
def test_explain__plan_describes_the_actual_conversion(call: Conversion) -> None:
    """Everything a plan says about memory, values and gradients holds for the conversion itself."""
    plan = explain(call.array, call.target, **call.options)
    result = outcome(call)
    if isinstance(result, xbridge.XBridgeError):
        event(type(result).__name__)
        if result.__cause__ is not None and not isinstance(result, xbridge.ValueLossError):
            # a cast that the library has not got, which it alone knows
            (cast,) = (step.action for step in plan.steps if step.op == "astype")
            assert f"the step {cast} failed" in str(result)
        elif plan.error is None:
            assert plan.checks, f"nothing was said of {result!r}"
            assert isinstance(result, (xbridge.ValueLossError, xbridge.DTypeError))
        else:
            assert (type(plan.error), str(plan.error)) == (type(result), str(result))
        return
    assert plan.error is None
    both_ends_are_as_told(plan, call, result)
    memory_is_as_told(plan, call, result)
    values_are_as_told(plan, call, result)
    history_is_as_told(plan, call, result)


def both_ends_are_as_told(plan: Plan, call: Conversion, result: Any) -> None:
    source, target = plan.source, plan.target
    assert target is not None
    for end, x in ((source, call.array), (target, result)):
        assert end.backend == xbridge.backend_of(x)
        assert end.dtype == xbridge.dtype_of(x)
        assert end.device == xbridge.device_of(x)
        assert end.shape == tuple(x.shape)
        held: Any = getattr(x, "_array", x)  # array-api-strict does not tell
        assert end.nbytes == held.nbytes
        assert end.requires_grad is bool(getattr(x, "requires_grad", False))
        if isinstance(held, np.ndarray) and end.backend != "numpy_readonly":
            assert end.writable is held.flags.writeable


def memory_is_as_told(plan: Plan, call: Conversion, result: Any) -> None:
    if not plan.steps:
        assert result is call.array
    if plan.source.device != "cpu" or plan.target is None or plan.target.device != "cpu":
        return
    source = plan.source.backend
    one, other = memory_of(source, call.array), memory_of(call.target, result)
    if plan.shares_memory:
        assert same_memory(one, other) or other.is_unallocated()  # a promise will look at it
    else:
        assert disjoint(one, other)
    if plan.shares_memory and plan.writable:
        assert plan.source.writable


def values_are_as_told(plan: Plan, call: Conversion, result: Any) -> None:
    if plan.exact:
        values = samples_of(plan.source.backend).read(call.array)
        back = samples_of(call.target).read(result)
        with np.errstate(all="ignore"):
            back = (back if values.dtype.kind == "c" else back.real).astype(values.dtype)
            equal = (back == values) | ((back != back) & (values != values))  # noqa: PLR0124 -- NaN alone
        assert equal.all()


def history_is_as_told(plan: Plan, call: Conversion, result: Any) -> None:
    had, has = (bool(getattr(x, "requires_grad", False)) for x in (call.array, result))
    assert plan.cuts_graph is (had and not has)
    if had and has and result is not call.array:
        assert result.grad_fn is not None


@settings(max_examples=30)
@given(conversions())
def test_explain__steps_allocate_what_they_report(call: Conversion) -> None:
    """Running the steps of a plan one by one allocates exactly the bytes they report."""
    plan = explain(call.array, call.target, **call.options)
    x: Any = call.array
    for step in plan.steps:
        try:
            x = getattr(step.module, step.op)(x, *step.args)
        except (xbridge.XBridgeError, TypeError):  # a value that does not fit, a cast that a library lacks
            return
        assert step.nbytes == (held(x).nbytes if step.copy_reason else 0)
        assert step.reason


def held(x: Any) -> Any:
    """The array whose memory is counted. Chunks that are to be cast are an array of the new dtype."""
    if hasattr(x, "array"):
        return x.array if x.dtype is None else x.array.astype(x.dtype)
    return getattr(x, "_array", x)


# -- nothing is read -----------------------------------------------------------------------------


def test_explain__reads_no_data() -> None:
    """Planning never touches the data, even if the page cannot be read."""
    code = """
        import ctypes, mmap
        import numpy as np, xbridge
        page = mmap.mmap(-1, mmap.PAGESIZE)
        x = np.frombuffer(page, "int64")
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        assert protect(x.ctypes.data, mmap.PAGESIZE, 0) == 0
        for dtype in (None, "default", "float32"):
            for copy in (None, True, False):
                plan = xbridge.explain(x[::-1], "numpy", dtype=dtype, copy=copy)
                print(plan.source.nbytes, flush=True)
        x[0]
    """
    status, lines = run(code)
    assert lines == [str(8 * (4096 // 8))] * 9
    assert status < 0, "the page could be read, so this test shows nothing"


def test_explain__computes_nothing_lazy() -> None:
    """A lazy dask array is explained without computing it, unknown shapes included."""
    da = pytest.importorskip("dask.array")

    def fail() -> None:
        raise AssertionError("it was computed")

    import dask

    lazy = da.from_delayed(dask.delayed(fail)(), (3,), "float64")
    for x, nbytes in ((lazy, 12), (lazy[lazy > 0], None)):
        plan = explain(x, "numpy", dtype="float32")
        copies = [(step.op, step.nbytes) for step in plan.steps if step.copy_reason]
        assert copies == [("astype", nbytes), ("materialize", nbytes)]
        assert plan.error is None
        assert not plan.shares_memory
    assert explain(x, "dask").to_dict()["source"]["shape"] == [None]
    assert not explain(lazy, "dask").shares_memory
    ends = plan.to_dict()["source"], plan.to_dict()["target"]
    assert [(end["shape"], end["nbytes"]) for end in ends] == [([None], None)] * 2
    assert "(nan,)" in str(plan)
    assert "? bytes" in str(plan)


def test_explain__empty_array_shares_no_memory() -> None:
    """There are no bytes that both could use."""
    for empty in (np.ones(0), np.ones((2, 0, 3))[:, :, ::-1]):
        assert not explain(empty, "numpy").shares_memory
    assert explain(np.ones(1), "numpy").shares_memory


def test_explain__meta_tensor_has_unknown_bytes() -> None:
    """Sizes are unknown for tensors without memory."""
    torch = pytest.importorskip("torch")
    plan = explain(torch.ones(3, device="meta"), "torch", dtype="float64")
    assert plan.steps[0].nbytes is None
    assert plan.source.nbytes is plan.source.writable is None
    assert "? bytes" in str(plan)
    assert isinstance(explain(torch.ones(3, device="meta"), "numpy").error, xbridge.UnsupportedArrayError)


def test_explain__plan_holds_no_reference_to_the_array() -> None:
    """A plan does not keep its array alive."""
    from weakref import ref

    for options in ({}, {"copy": False, "dtype": "float32"}):
        x = np.ones(3)
        gone = ref(x)
        plan = explain(x, "numpy", **options)  # type: ignore[call-overload] # an option of each type
        del x
        assert gone() is None, plan


def test_explain__raises_for_invalid_arguments() -> None:
    """Arguments that are invalid raise directly instead of giving a plan with an error."""
    with pytest.raises(xbridge.UnknownBackendError):
        explain(np.ones(3), "numpi")
    with pytest.raises(xbridge.OptionError):
        explain(np.ones(3), "numpy", copy="yes")  # type: ignore[call-overload] # what is refused
    with pytest.raises(xbridge.UnsupportedArrayError):
        explain([1, 2], "numpy")


# -- options of asarray --------------------------------------------------------------------------


def test_explain__requires_grad_shows_leaf_and_cut() -> None:
    """A plan says whether the result is a new leaf and whether the graph is cut."""
    torch = pytest.importorskip("torch")
    plan = explain(np.ones(3), "torch", requires_grad=True)
    assert plan.target is not None
    assert plan.target.requires_grad
    assert not plan.cuts_graph
    tracked = torch.ones(3, requires_grad=True) * 2
    assert explain(tracked, "torch", requires_grad=True, grad="detach").cuts_graph
    assert isinstance(explain(tracked, "torch", requires_grad=True).error, xbridge.GradientError)
    assert explain(tracked, "torch", requires_grad=False).cuts_graph


def test_explain__checks_list_what_may_raise() -> None:
    """A cast that depends on values appears in `checks`."""
    jax = pytest.importorskip("jax")
    with jax.enable_x64(False):
        plan = explain(np.arange(3), "jax", dtype="default")
        assert [step.action for step in plan.checks] == ["check_cast int32"]
        assert plan.exact, "or it raises"
        assert "an error if a value does not fit int32" in str(plan)
        assert not explain(np.ones(3), "jax", dtype="default").exact


# -- how it is shown -----------------------------------------------------------------------------


def test_plan__str_is_an_aligned_table() -> None:
    """`str(plan)` has one line per end and step and a summary."""
    host = np.arange(6, dtype=">i4")
    host.flags.writeable = False
    assert str(explain(host, "numpy", dtype="float32")).splitlines() == [
        "from  numpy int32 (6,) on cpu    24 bytes  read-only",
        "1     numpy astype float32       24 bytes  int32 becomes float32",
        "to    numpy float32 (6,) on cpu  24 bytes  writable",
        "so    new memory, writable; values may change",
    ]
    assert str(explain(np.ones(2), "numpy")).endswith("so    the array itself")


def test_plan__str_shows_the_error() -> None:
    """A plan of a refused conversion prints the error that the conversion raises."""
    x = np.arange(3)
    plan = explain(x[::-1], "numpy", copy=False, dtype="float32")
    assert plan.target is None
    verdict = (plan.shares_memory, plan.writable, plan.exact, plan.cuts_graph)
    assert (plan.steps, verdict) == ((), (False,) * 4)
    to, so = str(plan).splitlines()[1:]
    assert to.split() == ["to", "numpy", "refused"]
    assert so == f"so    CopyError: {plan.error}"
    assert repr(plan).startswith("<Plan: numpy int64 (3,) on cpu to numpy: CopyError: cannot convert")


def test_plan__repr_shows_the_graph() -> None:
    """`repr(plan)` says whether the autograd graph ends or goes on."""
    torch = pytest.importorskip("torch")
    x = torch.ones(3, requires_grad=True)
    assert repr(explain(x, "numpy")).endswith("shares memory, read-only; the graph ends here>")
    assert repr(explain(x, "torch")).endswith("the array itself; the graph goes on>")
    assert "writable, requires grad" in str(explain(x, "torch"))


def test_plan__html_escapes() -> None:
    """A notebook shows the lines of a plan, and takes nothing of them for a tag."""
    plan = explain(np.ones(3), "numpy", device="<here>")
    assert plan._repr_html_() == f"<pre>{escape(str(plan))}</pre>"
    assert "<here>" not in plan._repr_html_()


def test_plan__is_frozen_and_hashable() -> None:
    """Plans are immutable, compare by value and are not tuples."""
    x = np.ones(3)
    plan = explain(x, "numpy", dtype="float32")
    assert not isinstance(plan, tuple)
    assert plan == explain(x, "numpy", dtype="float32")
    assert len({plan, explain(x, "numpy", dtype="float32")}) == 1
    with pytest.raises(FrozenInstanceError):
        plan.steps = ()  # type: ignore[misc] # that is the mistake


def test_plan__to_dict_is_json_serializable() -> None:
    """`to_dict` returns only what JSON can represent."""
    import json

    end = {"backend": "numpy", "device": "cpu", "shape": [3], "writable": True, "requires_grad": False}
    source = {**end, "dtype": "int64", "nbytes": 24}
    step = {"backend": "numpy", "op": "astype", "args": ["float32"], "nbytes": 12}
    no = dict.fromkeys(["shares_memory", "writable", "exact", "cuts_graph"], False)
    always = {"source": source, "backend": "numpy", "checks": []} | no
    assert json.loads(json.dumps(explain(np.arange(3), "numpy", dtype="float32").to_dict())) == always | {
        "target": {**end, "dtype": "float32", "nbytes": 12},
        "steps": [{**step, "reason": "int64 becomes float32"}],
        "writable": True,
        "error": None,
    }
    refused = explain(np.arange(3), "numpy", device="nowhere")
    error = {"type": "DeviceError", "message": str(refused.error)}
    assert refused.to_dict() == always | {"target": None, "steps": [], "error": error}


# -- where it is found ---------------------------------------------------------------------------


def test_dir__lists_lazy_names() -> None:
    """`dir(xbridge)` lists every public name, including those imported on first use."""
    assert set(xbridge.__all__) <= set(dir(xbridge))
    for name in xbridge.__all__:
        assert getattr(xbridge, name) is not None
    with pytest.raises(AttributeError, match="module 'xbridge' has no attribute 'explains'"):
        _ = xbridge.explains  # type: ignore[attr-defined] # it is not there


def gone() -> dict[str, Any]:
    """Arrays whose elements can no longer be read, by the words of the error."""
    torch = pytest.importorskip("torch")
    whole, part, pairs = torch.ones(8), torch.ones(8), torch.ones(4, dtype=torch.complex64)
    made: dict[str, Any] = {"whole": whole, "end": part[4:], "strided": part[::2]}
    made["negative"] = pairs.conj().imag
    whole.untyped_storage().resize_(0)
    part.untyped_storage().resize_(24)
    pairs.untyped_storage().resize_(0)
    if xbridge.is_available("jax"):
        import jax

        made["deleted"] = jax.numpy.ones(3)
        made["deleted"].delete()
    return made


@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"copy": True}], ids=str)
def test_explain__unreadable_memory_has_the_conversions_error(options: dict[str, Any]) -> None:
    """A plan for freed or deleted memory has the error that the conversion raises, also in a tree."""
    for kind, x in gone().items():
        name = xbridge.backend_of(x)
        assert explain(x, name).error is None, kind
        for target in (name, "numpy"):
            with pytest.raises(xbridge.UnsupportedArrayError) as alone:
                xbridge.to_backend(x, target, **options)
            assert str(explain(x, target, **options).error) == str(alone.value), kind
            with pytest.raises(xbridge.UnsupportedArrayError) as inside:
                xbridge.tree.to_backend([xbridge.array_namespace(x).ones(8), x], target, **options)
            assert str(inside.value) == f"at tree[1]: {alone.value}", kind


def test_explain__exact_is_what_can_cast_says() -> None:
    """`exact` agrees with `np.can_cast`, except for int64 to float64, and is False for an unknown range."""
    dtypes = ("bool", "int8", "uint16", "int64", "float16", "float64", "complex64")
    for old, wanted in product(dtypes, dtypes):
        plan = explain(np.ones(3, old), "numpy", dtype=wanted)
        safe = np.can_cast(old, wanted) and (old, wanted) != ("int64", "float64")
        assert plan.exact is (safe and plan.error is None), (old, wanted)
    pytest.importorskip("ml_dtypes")
    ones = np.ones(2, "float32")
    assert not explain(ones, "numpy", dtype="float8_e8m0fnu").exact
    assert explain(ones, "numpy", dtype="float64").exact
    assert not explain(ones.astype("longdouble"), "numpy", dtype="float64").exact


def modes() -> dict[str, Callable[[], AbstractContextManager[object]]]:
    """The modes of torch in which a device may mean something else."""
    torch = pytest.importorskip("torch")
    fake = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode
    return {
        "none": nullcontext,
        "fake": fake,
        "inference": torch.inference_mode,
        "default device": lambda: torch.device("meta"),
    }


@pytest.mark.parametrize("mode", ["none", "fake", "inference", "default device"])
@pytest.mark.parametrize("device", ["cuda:77", "CUDA", "meta"])
@pytest.mark.parametrize("source", ["numpy", "torch"])
@pytest.mark.parametrize("target", ["torch", "jax", "numpy"])
def test_explain__predicts_whether_a_device_is_there(
    mode: str, device: str, source: str, target: str
) -> None:
    """A plan has the error that the conversion raises, and no other has one: of a device, and in a mode."""
    mode_of = modes()[mode]
    if not (xbridge.is_available(source) and xbridge.is_available(target)):
        pytest.skip("a library is not here")
    made = xbridge.to_backend(np.ones(2, "f4"), source)
    with mode_of():
        x = pytest.importorskip("torch").ones(2) if (source, mode) == ("torch", "fake") else made
        promised = xbridge.explain(x, target, device=device).error
        if promised is None:
            xbridge.to_backend(x, target, device=device)
        else:
            with pytest.raises(type(promised)) as caught:
                xbridge.to_backend(x, target, device=device)
            assert str(caught.value) == str(promised)
    if promised is not None and promised.reason.startswith(f"{target} has no device"):
        assert isinstance(promised, xbridge.DeviceError)
    if (source, target, mode, device) == ("torch", "torch", "none", "cuda:77"):
        assert promised.reason.startswith("torch has no device cuda:77 here, only cpu")


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize(("dtype", "exact"), [("float32", False), ({"int64": "float64"}, False)], ids=str)
def test_explain__table_of_several_dtypes_begins_with_the_cast_of_its_columns(
    library: str, dtype: Any, exact: bool
) -> None:
    """What a table becomes is new memory, and its plan says so and names the dtypes of the columns."""
    frame = pytest.importorskip(library).DataFrame({"x": [0.5, 1.5], "n": [1, 2]})
    plan, made = explain(frame, "numpy", dtype=dtype), xbridge.to_numpy(frame, dtype=dtype)
    assert plan.target is not None
    assert plan.target[:4] == ("numpy", made.dtype.name, "cpu", made.shape)
    assert plan.steps[0].reason == f"float64 and int64 become {made.dtype}, column by column"
    assert (plan.shares_memory, plan.exact, plan.steps[0].nbytes) == (False, exact, made.nbytes)
    assert (plan.source.dtype, plan.source.nbytes) == ("float64" if dtype == "float32" else "int64", 32)
    for refused in (explain, xbridge.to_backend):
        with pytest.raises(xbridge.DTypeError, match="cannot read a DataFrame: its column 'n' is int64"):
            refused(frame, "numpy")
    assert isinstance(explain(frame, "numpy", dtype=dtype, copy=False).error, xbridge.CopyError)


def test_explain__table_of_one_dtype_is_copied_or_cast() -> None:
    """A table whose columns are apart is new memory, and only another dtype is a cast."""
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"x": [0.5, 1.5], "y": [1.0, 2.0]})
    plan = explain(frame, "numpy")
    copied = plan.steps[0]
    assert (copied.op, copied.reason, copied.nbytes) == ("copy", "it exports new memory", 32)
    assert plan.writable is xbridge.to_numpy(frame).flags.writeable
    (cast,) = explain(pl.Series([1, None]), "numpy", dtype="float64").steps
    assert (cast.op, cast.reason) == ("astype", "int64 becomes float64, column by column")


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_explain__table_behind_a_wrapper_has_a_plan_or_the_refusal_of_the_call(library: str) -> None:
    """A frame of narwhals is explained like the table that it wraps, and refused as a conversion is."""
    nw = pytest.importorskip("narwhals")
    single = nw.from_dict({"x": [0.5, 1.5], "n": [1, 2]}, backend=library).with_columns(
        nw.col("n").cast(nw.Int32)
    )
    for dtype in (None, "float32"):
        plan, made = explain(single, "numpy", dtype=dtype), xbridge.to_numpy(single, dtype=dtype)
        assert plan.target is not None
        assert plan.target[:4] == ("numpy", made.dtype.name, "cpu", made.shape)
        assert plan.steps[0].reason == "float64 and int32 become float64, column by column"
    wide = single.with_columns(nw.col("n").cast(nw.Int64))
    for refused in (explain, xbridge.to_backend):
        with pytest.raises(xbridge.DTypeError, match="cannot read a DataFrame: its column 'n' is int64"):
            refused(wide, "numpy")


@pytest.mark.parametrize("options", [{"dtype": "float32", "copy": True}, {}, {"device": "cuda"}], ids=str)
def test_plan__pickle_round_trip(options: dict[str, Any]) -> None:
    """Pickled and deep-copied plans equal the original, also in the error of one that is refused."""
    plan = explain(np.arange(6.0)[::-1], "numpy", **options)
    for again in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert str(again) == str(plan)
        assert again.conversion.source is plan.conversion.source
        assert again == plan or (type(again.error), str(again.error)) == (type(plan.error), str(plan.error))
