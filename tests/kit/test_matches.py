"""One line tests a function with arrays of a library beside NumPy's, and says why it fails."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import array_api_compat
import numpy as np
import planted_contracts as planted
import pytest
from crossed import autograd_function
from inside import get_backend

import xbridge
from xbridge.testing import assert_gradients, assert_lazy, assert_matches_numpy
from xbridge.testing._matches import MismatchError
from xbridge.testing._source import Recipe, properties_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit_projects import Run

pytest_plugins = ["kit_projects"]

X = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
LIBRARIES = [
    name
    for name in ("numpy", "torch", "jax", "dask", "array_api_strict", "numpy_readonly")
    if name == "numpy_readonly" or xbridge.is_available(name)
]


def failure(
    f: Callable[..., Any], *args: Any, check: Callable[..., None] = assert_matches_numpy, **options: Any
) -> MismatchError:
    with pytest.raises(MismatchError) as caught:
        check(f, *args, **options)
    return caught.value


class Pair(NamedTuple):
    low: Any
    high: Any


@dataclasses.dataclass
class Report:
    total: Any
    name: str


def summary(x: Any) -> Any:
    xp = array_api_compat.array_namespace(x)
    return {"ends": Pair(xp.min(x), xp.max(x)), "rest": [Report(xp.sum(x), "sum"), (x.shape, 1.5, None)]}


@pytest.mark.parametrize("library", LIBRARIES)
def test_assert_matches_numpy__nested_arguments_and_results(library: str) -> None:
    """A function of the standard matches with nested arguments and results of any structure."""
    x = xbridge.asarray(X, backend=library, dtype="float32")
    assert_matches_numpy(summary, x)
    assert_matches_numpy(lambda pair, extra: pair[0] + extra["y"], (x, 1), extra={"y": x})
    assert_matches_numpy(lambda x: (part for part in (x, x)), x)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (lambda x: x + 1 if is_torch(x) else x, "values"),
        (lambda x: x.double() if is_torch(x) else x, "dtype"),
        (lambda x: x.numpy() if is_torch(x) else x, "backend"),
        (lambda x: "x" if is_torch(x) else x, "backend"),
        (lambda x: x[:1] if is_torch(x) else x, "shape"),
        (lambda x: (x, x) if is_torch(x) else x, "structure"),
        (lambda x: "a" if is_torch(x) else "b", "values"),
        (lambda x: 1.0 if is_torch(x) else 2.0, "values"),
        (lambda x: 2**70 if is_torch(x) else 2**71, "values"),
        (lambda x: None if is_torch(x) else x.sum(), "values"),
        (lambda x: None if is_torch(x) else x, "values"),
        (lambda x: x if is_torch(x) else None, "values"),
        (lambda x: iter([1]) if is_torch(x) else iter([2]), "values"),
        (lambda x: sys.exit(1) if is_torch(x) else x, "raises SystemExit"),
        (lambda x: x.mul_(2), "changes its input"),
        (lambda x: x.no_such_method(), "raises AttributeError"),
        (lambda x: x if is_torch(x) else x.no_such_method(), "does not raise"),
        (lambda x: warned(x) if is_torch(x) else x, "warns UserWarning"),
    ],
)
def test_assert_matches_numpy__finds_each_kind_of_difference(wrong: Callable[[Any], Any], kind: str) -> None:
    """Each kind of difference is found, and the program in the message shows it."""
    torch = pytest.importorskip("torch")
    found = failure(wrong, torch.ones(3)).finding
    assert found.problem == kind
    assert found.backend == "torch"
    assert found.needed == (("float32",) if kind == "dtype" else ())
    assert "torch.tensor([1.0, 1.0, 1.0]" in found.program
    assert "does not fail" not in found.program
    with pytest.raises((AssertionError, AttributeError, SystemExit, UserWarning, TypeError)) as raised:
        exec(found.program, {"f": wrong})
    if not kind.startswith(("raises", "warns")) and "iter" not in str(raised.value):
        assert isinstance(raised.value, AssertionError)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_assert_gradients__program_passes_for_a_right_function(dtype: str) -> None:
    """The program checks the gradient itself, and fails only for a function with a wrong one."""
    torch = pytest.importorskip("torch")

    wrong: Any = functools.partial(lambda x, n, scale: (x * n * scale).detach() + 0 * x)
    x, n = torch.ones(2, dtype=getattr(torch, dtype)), torch.tensor([1, 2])
    program = failure(wrong, x, n, scale=3.0, check=assert_gradients).finding.program
    assert "does not fail" not in program
    with pytest.raises(RuntimeError, match="Jacobian"):
        exec(program, {"f": wrong})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a check in float32
        exec(program, {"f": lambda x, n, scale: x * n * scale})


def test_assert_gradients__program_of_jax() -> None:
    """A right gradient of JAX passes, and its check in the program takes a function with any result."""
    jax = pytest.importorskip("jax")
    assert_gradients(jax.numpy.tanh, jax.numpy.asarray([0.5, 2.0]))

    wrong: Any = functools.partial(lambda x, n: jax.lax.stop_gradient(x * n) + 0 * x)
    x, n = jax.numpy.ones(2), jax.numpy.asarray([1, 2])
    program = failure(wrong, x, n, check=assert_gradients).finding.program
    assert "does not fail" not in program
    exec(program, {"f": lambda x, n: x * n})


def test_assert_gradients__nan() -> None:
    """A NaN gradient agrees only with a difference quotient that is NaN too."""
    torch = pytest.importorskip("torch")
    assert_gradients(torch.tanh, torch.tensor([np.nan], dtype=torch.float64))
    with pytest.raises(MismatchError, match="the derivative is nan, and the difference quotient 0"):
        assert_gradients(lambda x: torch.sqrt(x * 0), torch.ones(1, dtype=torch.float64))


def is_torch(x: Any) -> bool:
    return xbridge.backend_of(x) == "torch"


def warned(x: Any) -> Any:
    warnings.warn("look", UserWarning, stacklevel=1)
    return x


def test_assert_matches_numpy__errors_and_warnings() -> None:
    """Any two exceptions agree, and errors=False and warnings=False ignore one without the other."""
    torch = pytest.importorskip("torch")

    def refuse(x: Any) -> Any:
        raise (ValueError if is_torch(x) else TypeError)("no")

    assert_matches_numpy(refuse, torch.ones(2))
    for wrong in (lambda x: refuse(x) if is_torch(x) else x, lambda x: x if is_torch(x) else refuse(x)):
        failure(wrong, torch.ones(2))
        assert_matches_numpy(wrong, torch.ones(2), errors=False)
    assert_matches_numpy(lambda x: warned(x) if is_torch(x) else x, torch.ones(2), warnings=False)


def test_assert_matches_numpy__reference_and_tolerances() -> None:
    """A reference, a tolerance and the strictness of dtypes can be given."""
    assert_matches_numpy(np.add, X, X, reference=lambda x, y: x + y)
    failure(lambda x: x, X, reference=np.negative)
    close = X * (1 + 3 * np.finfo(float).eps)
    assert_matches_numpy(lambda _: close, X, reference=lambda x: x, ulp=4)
    failure(lambda x: x * 1.1, X, reference=lambda x: x, rtol=0.01)
    assert_matches_numpy(lambda x: x * 1.1, X, reference=lambda x: x, rtol=0.2)
    failure(lambda x: x.astype("float32"), X, reference=lambda x: x)
    assert_matches_numpy(lambda x: x.astype("float32"), X, reference=lambda x: x, dtype="kind")
    failure(lambda x: x.astype("int64"), X, reference=lambda x: x, dtype="kind")
    assert_matches_numpy(lambda x: x.astype("int64"), X, reference=lambda x: x, dtype="any")
    assert_matches_numpy(lambda x: x.astype("int64"), X, reference=lambda x: x, dtype="any", ulp=1)


@pytest.mark.parametrize("options", [{"dtype": "equal"}, {"rtol": 1.0, "ulp": 1}])
def test_assert_matches_numpy__refuses_invalid_options(options: dict[str, Any]) -> None:
    """An unknown dtype rule, and rtol= together with ulp=, are refused."""
    with pytest.raises(xbridge.OptionError, match="; try "):
        assert_matches_numpy(np.add, X, X, **options)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("transposed", lambda x: x.T),
        ("reversed", lambda x: x[..., ::-1]),
        ("strided", lambda x: np.repeat(x, 2, -1)[..., ::2]),
        ("broadcast", lambda x: np.broadcast_to(x[:1], x.shape)),
        ("byte-swapped", lambda x: x.astype(">f8")),
        (
            "unaligned",
            lambda x: np.frombuffer(bytearray(b"-" + x.tobytes()), "f8", offset=1).reshape(x.shape),
        ),
        ("read-only", lambda x: np.lib.stride_tricks.as_strided(x, writeable=False)),
    ],
)
def test_assert_matches_numpy__names_the_layout(name: str, build: Any) -> None:
    """The layout that makes a call fail is named, and the program builds it."""

    def only_plain(x: Any) -> Any:
        flags = x.flags
        if not (flags.c_contiguous and flags.aligned and flags.writeable and x.dtype.isnative):
            raise ValueError("no")
        return x

    found = failure(only_plain, build(X)).finding
    assert name in found.needed
    assert "run without" not in found.program
    assert str(failure(only_plain, build(X))).startswith(
        "only_plain raises ValueError with numpy: passes plain"
    )


def _no_bits(x: Any) -> Any:
    return x.numpy() is None or x if is_torch(x) else x


@pytest.mark.parametrize(
    ("f", "build", "needed"),
    [
        (_no_bits, lambda torch: torch.ones(2, dtype=torch.complex64).conj(), ("conj",)),
        (_no_bits, lambda torch: torch.ones(2, dtype=torch.complex64).conj().imag, ("neg",)),
        (_no_bits, lambda torch: torch.ones(2, requires_grad=True), ("requires_grad",)),
        (np.nan_to_num, lambda _: np.array([1.0, np.nan]), ("NaN",)),
        (np.nan_to_num, lambda _: np.array([1.0, np.inf]), ("infinity",)),
        (lambda x: x + x, lambda _: np.array([100, 1], np.int8), ("large integers", "int8")),
    ],
)
def test_assert_matches_numpy__names_what_is_needed(f: Any, build: Any, needed: tuple[str, ...]) -> None:
    """Pending operations, requires_grad, NaNs, infinities and large integers are named where they matter."""
    x = build(pytest.importorskip("torch"))

    def reference(x: Any) -> Any:
        return x.astype("int64") * 2 if x.dtype.kind == "i" else x

    found = failure(f, x, reference=reference, dtype="kind").finding
    assert found.needed == needed
    assert "does not fail" not in found.program


@pytest.mark.parametrize("library", LIBRARIES)
def test_recipe__properties_keep_the_values(library: str) -> None:
    """A property changes how an array is stored, and none of its values."""
    for dtype in ("float32", "complex64"):
        values = np.broadcast_to(X[:1], (3, 3)).astype(dtype)
        for name in properties_of(library):
            recipe = Recipe(library, np.ascontiguousarray(values))
            if recipe.takes(name) and name != "unknown chunks":
                made = recipe._replace(properties=(name,)).make()
                host = xbridge.to_numpy(made, copy=True)
                assert host.tolist() == values.tolist(), name


def test_assert_matches_numpy__array_of_a_plugin(own_registry: None) -> None:
    """Without source code for the arrays of a library, the finding says so."""
    from toylib import Toy, make_backend

    xbridge.register_backend("toylib", make_backend())
    found = failure(lambda x: x.data, Toy(X), reference=lambda x: x + 1).finding
    assert found.program == "# no program: the kit has no source code for arrays of toylib"


def test_assert_matches_numpy__program_that_does_not_fail() -> None:
    """A program that does not reproduce the failure says so."""

    def refuse_maps(x: Any) -> Any:
        if isinstance(x, np.memmap):
            raise TypeError("no")
        return x

    import tempfile

    with tempfile.TemporaryFile() as file:
        x = np.memmap(file, "float64", "w+", shape=(2,))
    assert "this program does not fail" in failure(refuse_maps, x).finding.program


# -- what a library derives ----------------------------------------------------------------------


def test_assert_matches_numpy__exception_while_a_lazy_result_is_computed() -> None:
    """An exception in the computation of a lazy result is a difference, and warnings there count too."""
    da = pytest.importorskip("dask.array")

    def later(act: Callable[[], object]) -> Callable[[Any], Any]:
        def block(x: Any) -> Any:
            act()
            return x + 0

        return lambda x: (
            x + 0 if isinstance(x, np.ndarray) else x.map_blocks(block, dtype=x.dtype, meta=np.empty(0))
        )

    def fail() -> None:
        raise ArithmeticError("later")

    with pytest.raises(MismatchError, match="raises ArithmeticError with dask"):
        assert_matches_numpy(later(fail), da.ones(3))
    assert_matches_numpy(later(fail), da.ones(3), errors=False)
    with (
        pytest.importorskip("dask.config").set(scheduler="sync"),
        pytest.raises(MismatchError, match="warns UserWarning"),
    ):
        assert_matches_numpy(later(lambda: warnings.warn("later", stacklevel=1)), da.ones(3))


def test_assert_matches_numpy__warning_that_torch_gives_once() -> None:
    """A warning that torch gives only once is found in each call, and torch's setting is kept."""
    torch = pytest.importorskip("torch")
    before = torch.is_warn_always_enabled()
    for _ in range(3):
        found = failure(lambda x: x.T, torch.ones(2, 3, 4))
        assert found.finding.problem == "warns UserWarning"
        assert "does not fail" not in found.finding.program
    assert torch.is_warn_always_enabled() == before


def test_assert_gradients__right_wrong_and_missing() -> None:
    """A right gradient passes; a wrong one, a cut graph and an exception fail."""
    torch = pytest.importorskip("torch")
    x = torch.tensor([0.5, 2.0], dtype=torch.float64)
    assert_gradients(torch.tanh, x)
    assert_gradients(lambda x, n: (x**n, n), x.requires_grad_(), 3)
    assert_gradients(lambda x: x, torch.ones(0))

    wrong = autograd_function(lambda x: x * 2, lambda ctx, g: g * 3)
    for f, kind in (
        (wrong, "gradient"),
        (lambda x: x.detach() ** 2, "cuts the graph"),
        (lambda x: x.numpy(), "raises RuntimeError"),
    ):
        found = failure(f, x, check=assert_gradients)
        assert found.finding.problem == kind
    assert "torch.autograd.gradcheck" in str(found)


@pytest.mark.parametrize("axis", [0, 1])
def test_assert_gradients__expanded_tensors(axis: int) -> None:
    """The gradient of an expanded tensor is compared with differences of all of its elements."""
    torch = pytest.importorskip("torch")
    x = torch.tensor([[0.5], [0.25]], dtype=torch.float64)
    assert_gradients(torch.tanh, (x[:1] if axis == 0 else x).expand(2, 3))
    with pytest.raises(MismatchError, match="gradient"):
        assert_gradients(lambda x: x.detach() + 0 * x, x[:1].expand(2, 3))


def test_assertions__refuse_arrays_without_gradients_or_of_no_lazy_library() -> None:
    """Arrays of NumPy and tensors of integers have no gradients; those of NumPy are never lazy."""
    torch = pytest.importorskip("torch")
    for check, x, kind in (
        (assert_gradients, X, xbridge.GradientError),
        (assert_gradients, torch.ones(2, dtype=torch.int64), xbridge.GradientError),
        (assert_lazy, X, xbridge.OptionError),
    ):
        with pytest.raises(kind, match="; try "):
            check(lambda x: x, x)


@pytest.mark.parametrize("library", ["dask", "jax"])
def test_assert_lazy__passes_and_fails(library: str) -> None:
    """A function that keeps an array lazy passes; one that needs its values or raises fails."""
    pytest.importorskip(library)
    x = xbridge.asarray(X, backend=library, dtype="float32")
    assert_lazy(lambda x, n: x.sum() * n, x, n=2)
    with pytest.raises(MismatchError, match=f"computes a lazy array with {library}"):
        assert_lazy(planted.computed, x)
    with pytest.raises(MismatchError, match="raises"):
        assert_lazy(lambda x: x.no_such_method(), x)


# -- pytest --------------------------------------------------------------------------------------

FAILING = """
    import numpy as np
    from xbridge.testing import assert_matches_numpy

    def double(x):
        x *= 2
        return x

    def test_double():
        assert_matches_numpy(double, np.ones(2))

    def test_group():
        try:
            assert_matches_numpy(double, np.ones(2))
        except AssertionError as error:
            raise ExceptionGroup("several", [error])
"""


def test_plugin__summary_and_report_of_findings(run: Run, tmp_path: Any) -> None:
    """A run ends with a line for each cause, and --xbridge-report writes them to a file."""
    report = tmp_path / "found.json"
    result = run(FAILING, f"--xbridge-report={report}")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*xbridge: findings*", "double *plain arrays*numpy*changes its input"])
    (row,) = json.loads(report.read_text(encoding="utf-8"))
    assert row["function"] == "double"
    empty = tmp_path / "found.md"
    run("def test_x(): pass", f"--xbridge-report={empty}").assert_outcomes(passed=1)
    for place in (report.parent, report.parent / "no" / "x.md"):
        result = run(FAILING, f"--xbridge-report={place}")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert "try findings.md" in str(result.stderr)
    assert empty.read_text(encoding="utf-8").startswith("| function | property |")


def test_recipe__keeps_the_dtype_on_every_device() -> None:
    """An array has its dtype on a device with other default dtypes too, and so has that of the program."""
    strict = pytest.importorskip("array_api_strict")
    for name in ("cpu", "device1", "device2"):
        for dtype in ("float64", "float32", "int64", "complex64", "complex128", "bool"):
            device = next(one for one in get_backend("array_api_strict").devices() if str(one) == name)
            made = Recipe(
                "array_api_strict",
                np.ones(2, dtype),
                xbridge.Device(name) if name == "cpu" else device,
            ).make()
            assert made.dtype == getattr(strict, dtype)
