"""What `explain` says of a conversion is what then happens, and to say it reads nothing."""

from __future__ import annotations

import copy
import pickle
import re
from dataclasses import FrozenInstanceError
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fresh import run
from hypothesis import event, given, settings
from strategies_conversions import Conversion, conversions

import xbridge
from xbridge import explain
from xbridge.testing.conformance._probes import disjoint, memory_of, same_memory
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from xbridge import Plan


# -- every claim, and what then happened ---------------------------------------------------------


def outcome(call: Conversion) -> Any:
    """The result of the conversion, or what it raises."""
    try:
        return xbridge.to_backend(call.array, call.target, **call.options)
    except xbridge.XBridgeError as error:
        return error


@settings(max_examples=150)
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


@settings(max_examples=75)
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


def test_explain__dask_cast_reports_bytes_of_the_result() -> None:
    """Casting a chunked array reports the size of the result."""
    da = pytest.importorskip("dask.array")
    call = Conversion(da.ones(3, chunks=2), "numpy", {"dtype": "float32"})
    test_explain__steps_allocate_what_they_report.hypothesis.inner_test(call)  # type: ignore[attr-defined]


@settings(max_examples=75)
@given(conversions().map(lambda call: call._replace(options={})))
def test_explain__matches_the_fast_path(call: Conversion) -> None:
    """A plan also describes conversions that take the fast path."""
    plan = explain(call.array, call.target)
    result = outcome(call)
    if isinstance(result, xbridge.XBridgeError):
        assert str(plan.error) == str(result)
        return
    both_ends_are_as_told(plan, call, result)
    memory_is_as_told(plan, call, result)
    history_is_as_told(plan, call, result)


def test_explain__byte_order_and_cast_are_one_step() -> None:
    """Swapping bytes and casting takes one copy, not two."""
    pytest.importorskip("torch")
    x = np.arange(3, dtype=">f8")
    plan = explain(x, "torch", dtype="float64")
    assert [(step.op, step.nbytes) for step in plan.steps if step.copy_reason] == [("astype", 24)]
    assert xbridge.to_backend(x, "torch", dtype="float64").tolist() == [0, 1, 2]


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
    plan = explain(lazy, "numpy", dtype="float32")
    assert [(step.op, step.nbytes) for step in plan.steps if step.copy_reason] == [
        ("astype", 12),
        ("materialize", 12),
    ]
    assert not plan.shares_memory
    unknown = lazy[lazy > 0]
    assert explain(unknown, "dask").to_dict()["source"]["shape"] == [None]
    plan = explain(unknown, "numpy", dtype="float32")
    assert plan.error is None
    assert [(step.op, step.nbytes) for step in plan.steps if step.copy_reason] == [
        ("astype", None),
        ("materialize", None),
    ]
    ends = plan.to_dict()["source"], plan.to_dict()["target"]
    assert [(end["shape"], end["nbytes"]) for end in ends] == [([None], None)] * 2
    assert "(nan,)" in str(plan)
    assert "? bytes" in str(plan)


def test_explain__meta_tensor_has_unknown_bytes() -> None:
    """Sizes are unknown for tensors without memory."""
    torch = pytest.importorskip("torch")
    plan = explain(torch.ones(3, device="meta"), "torch", dtype="float64")
    assert plan.steps[0].nbytes is None
    assert plan.source.nbytes is plan.source.writable is None
    assert "? bytes" in str(plan)
    assert isinstance(explain(torch.ones(3, device="meta"), "numpy").error, xbridge.UnsupportedArrayError)


class Exporter:
    """What hands out an array, and counts how often it would have had to copy."""

    def __init__(self, array: Any, *, copies: bool) -> None:
        self.array, self.copies, self.copied = array, copies, 0

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Any:
        if self.copies:
            if copy is False:
                raise ValueError("there is nothing to look at yet")
            self.copied += 1
        return self.array.copy() if self.copies else self.array


def test_explain__exporter_is_its_exported_array() -> None:
    """An object with `__array__` is explained by the array it exports."""
    plan = explain(Exporter(np.ones(3), copies=False), "numpy")
    assert plan.shares_memory
    assert plan.source.backend == "numpy"
    assert plan.writable is False  # `__array__` does not say whose memory it is


def test_explain__refuses_exporters_that_copy() -> None:
    """`explain` does not make an exporter copy its data and raises instead."""
    exporter = Exporter(np.ones(3), copies=True)
    with pytest.raises(xbridge.UnsupportedArrayError, match="explain a conversion of an Exporter") as caught:
        explain(exporter, "numpy")
    assert caught.value.reason == "its memory cannot be shown without a copy or a computation"
    assert exporter.copied == 0


def test_explain__scalar_shares_no_memory() -> None:
    """Converting a NumPy scalar never shares memory, so `copy=False` is refused."""
    plan = explain(np.float32(3), "numpy")
    assert not plan.shares_memory
    refused = explain(np.float32(3), "numpy", copy=False)
    with pytest.raises(xbridge.CopyError) as caught:
        xbridge.to_numpy(np.float32(3), copy=False)
    assert str(refused.error) == str(caught.value)


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


def test_explain__copy_under_no_grad_cuts_graph() -> None:
    """Under `torch.no_grad` a copy cuts the graph, while the array itself keeps it."""
    torch = pytest.importorskip("torch")
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert explain(x, "torch", copy=True).cuts_graph
        assert not explain(x, "torch").cuts_graph
    assert not explain(x, "torch", copy=True).cuts_graph
    assert explain(x, "torch", dtype="int64").cuts_graph


def test_explain__checks_list_what_may_raise() -> None:
    """A cast that depends on values appears in `checks`."""
    jax = pytest.importorskip("jax")
    with jax.enable_x64(False):
        plan = explain(np.arange(3), "jax", dtype="default")
        assert [step.action for step in plan.checks] == ["check_cast int32"]
        assert plan.exact, "or it raises"
        assert "an error if a value does not fit int32" in str(plan)
        assert not explain(np.ones(3), "jax", dtype="default").exact


@pytest.mark.parametrize("given", ["bool", "int8", "uint16", "int64", "float16", "float64", "complex64"])
@pytest.mark.parametrize("wanted", ["bool", "uint8", "int32", "float16", "float32", "float64", "complex64"])
def test_explain__exact_agrees_with_can_cast(given: str, wanted: str) -> None:
    """`exact` agrees with `np.can_cast`, except for int64 to float64, which NumPy calls safe."""
    plan = explain(np.ones(3, given), "numpy", dtype=wanted)
    safe = np.can_cast(given, wanted) or (given, wanted) == ("int64", "int64")
    rounds = given == "int64" and wanted == "float64"  # which NumPy calls safe
    assert plan.exact is (safe and not rounds and plan.error is None)


def test_explain__casts_on_host_if_neither_library_can() -> None:
    """A cast that neither library has is done by NumPy."""
    strict, jax = pytest.importorskip("array_api_strict"), pytest.importorskip("jax")
    x = strict.asarray([0.3, -7.0])
    with jax.enable_x64(False):
        plan = explain(x, "jax", dtype="float8_e4m3fn")
        result = xbridge.to_backend(x, "jax", dtype="float8_e4m3fn")
    assert [step.backend for step in plan.steps if step.op == "astype"] == ["numpy"]
    assert np.asarray(result).tolist() == np.array([0.3, -7.0]).astype(result.dtype).tolist()


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


def test_plan__str_right_aligns_bytes() -> None:
    """Sizes are right-aligned and empty for steps that allocate nothing."""
    pytest.importorskip("torch")
    assert str(explain(np.ones(20, "float32"), "torch", dtype="float64")).splitlines() == [
        "from  numpy float32 (20,) on cpu   80 bytes  writable",
        "1     numpy to_numpy                         a view of its memory",
        "2     numpy astype float64        160 bytes  float32 becomes float64",
        "3     torch from_numpy                       an array over that memory",
        "to    torch float64 (20,) on cpu  160 bytes  writable",
        "so    new memory, writable",
    ]
    assert repr(explain(np.ones(3), "torch")).endswith(": shares memory, writable>")


def test_plan__str_shows_unknown_bytes() -> None:
    """`str(plan)` prints "? bytes" where the size is unknown."""
    torch = pytest.importorskip("torch")
    assert str(explain(torch.ones(3, device="meta"), "torch", dtype="float64")).splitlines() == [
        "from  torch float32 (3,) on meta  ? bytes  memory unknown",
        "1     torch astype float64        ? bytes  float32 becomes float64",
        "to    torch float64 (3,) on meta  ? bytes  writable",
        "so    new memory, writable",
    ]


def test_plan__repr_shows_read_only_result() -> None:
    """`repr(plan)` says if the result is new memory but read-only."""
    pytest.importorskip("jax")
    assert repr(explain(np.ones(3, "float32"), "jax")).endswith(": new memory, read-only>")


def test_plan__nbytes_known_for_any_dtype() -> None:
    """The size of an unchanged array is known even for dtypes specific to NumPy."""
    x = np.ones(3, "longdouble")
    target = explain(x, "numpy").target
    assert target is not None
    assert target.nbytes == x.nbytes


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


def test_plan__html_is_a_table() -> None:
    """In a notebook a plan is an HTML table."""
    html = explain(np.ones(3), "numpy", dtype="float32")._repr_html_()
    rows = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in html.split("</tr>")[:-1]]
    assert rows == [
        ["from", "numpy float64 (3,) on cpu", "24 bytes", "writable"],
        ["1", "numpy astype float32", "12 bytes", "float64 becomes float32"],
        ["to", "numpy float32 (3,) on cpu", "12 bytes", "writable"],
        ["so", "new memory, writable; values may change"],
    ]
    assert html.count("text-align: left") == 11
    assert html.count("text-align: right") == html.count("bytes") == 3
    assert html.count('colspan="3"') == 1
    assert "color" not in html


def test_plan__html_marks_errors_and_escapes() -> None:
    """The HTML of a refused plan is colored and escapes what the caller passed."""
    html = explain(np.ones(3), "numpy", device="<here>")._repr_html_()
    assert '<td colspan="3" style="text-align: left; color: #c62828">DeviceError: ' in html
    assert "&lt;here&gt;" in html


@pytest.mark.parametrize("width", [30, 80, 400])
def test_plan__rich_table_fits_the_width(width: int) -> None:
    """The rich table fits any console width and prints brackets literally."""
    rich = pytest.importorskip("rich.console")
    for plan in (
        explain(np.ones(3), "numpy", device="[red]"),
        explain(np.arange(6)[::-1], "numpy", dtype="float32"),
    ):
        shown = StringIO()
        rich.Console(file=shown, width=width).print(plan)
        printed = shown.getvalue()
        assert max(map(len, printed.splitlines())) <= width
        assert sorted("".join(printed.split())) == sorted("".join(str(plan).split()))
    assert "[red]" in str(explain(np.ones(3), "numpy", device="[red]").error)


def test_plan__is_frozen_and_hashable() -> None:
    """Plans are immutable, compare by value and are not tuples."""
    x = np.ones(3)
    plan = explain(x, "numpy", dtype="float32")
    assert not isinstance(plan, tuple)
    assert plan == explain(x, "numpy", dtype="float32")
    assert len({plan, explain(x, "numpy", dtype="float32")}) == 1
    with pytest.raises(FrozenInstanceError):
        plan.steps = ()  # type: ignore[misc] # that is the mistake


PICKLED: dict[str, dict[str, Any]] = {
    "a cast": {"dtype": "float32"},
    "the array itself": {},
    "another library": {"target": "array_api_strict", "copy": True},
}


@pytest.mark.parametrize("options", PICKLED.values(), ids=PICKLED)
def test_plan__pickle_round_trip(options: dict[str, Any]) -> None:
    """Pickled and deep-copied plans equal the original."""
    target = options.get("target", "numpy")
    pytest.importorskip(target)
    asked = {word: option for word, option in options.items() if word != "target"}
    plan = explain(np.arange(6.0)[::-1], target, **asked)
    for again in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert again == plan
        assert str(again) == str(plan)
        assert again.conversion.source is plan.conversion.source


def test_plan__pickle_keeps_the_error() -> None:
    """The error of a refused plan survives pickling with its hint."""
    plan = explain(np.ones(3), "numpy", device="cuda")
    again: Any = pickle.loads(pickle.dumps(plan))
    assert again.error.hint == "device='cpu'"
    assert str(again) == str(plan)
    assert type(again.error) is type(plan.error)


def test_plan__pickle_loads_in_another_process() -> None:
    """A plan can be unpickled in a fresh interpreter."""
    plan = explain(np.arange(6.0)[::-1], "numpy", dtype="float32")
    code = f"import pickle; print(pickle.loads({pickle.dumps(plan)!r}))"
    assert run(code) == (0, str(plan).splitlines())


def test_plan__to_dict_is_json_serializable() -> None:
    """`to_dict` returns only what JSON can represent."""
    import json

    end = {"backend": "numpy", "device": "cpu", "shape": [3], "writable": True, "requires_grad": False}
    source = {**end, "dtype": "int64", "nbytes": 24}
    step = {"backend": "numpy", "op": "astype", "args": ["float32"], "nbytes": 12}
    assert json.loads(json.dumps(explain(np.arange(3), "numpy", dtype="float32").to_dict())) == {
        "source": source,
        "target": {**end, "dtype": "float32", "nbytes": 12},
        "backend": "numpy",
        "steps": [{**step, "reason": "int64 becomes float32"}],
        "shares_memory": False,
        "writable": True,
        "exact": False,
        "cuts_graph": False,
        "checks": [],
        "error": None,
    }
    refused = explain(np.arange(3), "numpy", device="nowhere")
    assert refused.to_dict() == {
        "source": source,
        "target": None,
        "backend": "numpy",
        "steps": [],
        "shares_memory": False,
        "writable": False,
        "exact": False,
        "cuts_graph": False,
        "checks": [],
        "error": {"type": "DeviceError", "message": str(refused.error)},
    }


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
    torch, made = pytest.importorskip("torch"), {}
    whole, part, pairs = torch.ones(8), torch.ones(8), torch.ones(4, dtype=torch.complex64)
    made["whole"], made["end"], made["strided"], made["negative"] = (
        whole,
        part[4:],
        part[::2],
        pairs.conj().imag,
    )
    whole.untyped_storage().resize_(0)
    part.untyped_storage().resize_(24)
    pairs.untyped_storage().resize_(0)
    if xbridge.is_available("jax"):
        import jax

        made["deleted"] = jax.numpy.ones(3)
        made["deleted"].delete()
    return made


@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"copy": True}], ids=str)
def test_explain__unreadable_memory_has_the_conversions_error(
    options: dict[str, Any],
) -> None:
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


def test_import_xbridge__leaves_lazy_modules_unloaded() -> None:
    """Importing xbridge does not import the modules of `explain`, `policy` and `record`."""
    status, lines = run(
        "import sys, xbridge; print(sorted(m for m in sys.modules if m.startswith('xbridge')))"
    )
    assert status == 0
    assert not any(word in lines[0] for word in ("_explain", "_plan", "_policy", "_record"))


def test_explain__exact_is_false_for_unknown_dtypes() -> None:
    """A cast to or from a dtype of unknown range, or one without a zero, is not exact."""
    pytest.importorskip("ml_dtypes")
    ones = np.ones(2, "float32")
    assert not explain(ones, "numpy", dtype="float8_e8m0fnu").exact
    assert explain(ones, "numpy", dtype="float64").exact
    assert not explain(ones.astype("longdouble"), "numpy", dtype="float64").exact
