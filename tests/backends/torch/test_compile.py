"""torch.compile: what stays inside torch is traced whole; what leaves it is done as eager does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fresh
import numpy as np
import pytest

import xbridge
import xbridge.tree

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

# A graph break makes the compiler touch the gradient of every tensor it carries across, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """No test runs on what another one compiled."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


WITHIN: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: xbridge.asarray(x * 2),
    "a name": lambda x: xbridge.to_backend(x * 2, "torch"),
    "dtype": lambda x: xbridge.to_backend(x * 2, "torch", dtype="float64"),
    "dtype object": lambda x: xbridge.to_backend(x * 2, "torch", dtype=torch.bfloat16),
    "numpy dtype": lambda x: xbridge.to_backend(x * 2, "torch", dtype=np.float64),
    "python dtype": lambda x: xbridge.to_backend(x * 2, "torch", dtype=float, grad="keep"),
    "default": lambda x: xbridge.to_backend(x * 2, "torch", dtype="default"),
    "nearest": lambda x: xbridge.to_backend(x * 2, "torch", dtype="nearest"),
    "nearest of all": lambda x: xbridge.align(x * 2, x.double(), dtype="nearest")[1],
    "a leaf": lambda x: xbridge.asarray(x, requires_grad=True) * 2,
    "meta": lambda x: x * xbridge.to_backend(x, "torch", device="meta").expand(2, 3).dim(),
    "copy": lambda x: xbridge.asarray(x * 2, copy=True),
    "detach": lambda x: xbridge.asarray(x * 2, grad="detach"),
    "device": lambda x: xbridge.to_backend(x * 2, "torch", device="cpu"),
    "device object": lambda x: xbridge.to_backend(x * 2, "torch", device=torch.device("cpu")),
    "like": lambda x: xbridge.asarray(x * 2, like=x, dtype="float64"),
    "align": lambda x: xbridge.align(x * 2, x, 3.0)[0],
    "nested lists": lambda x: xbridge.asarray([[x, x], [x * 2, x]]),
    "nested lists with numbers": lambda x: xbridge.asarray([[2.5, x[0]], [x[1] * 2, 1]], dtype="float32"),
    "a tree with text": lambda x: xbridge.tree.to_torch({"x": x, "a": "b"}, dtype="float64")["x"],
    "questions": lambda x: x * 2 if (xbridge.dtype_of(x), xbridge.device_of(x)) == ("float32", "cpu") else x,
}


def test_compile__torch_to_torch_is_one_graph() -> None:
    """Conversions within torch, all in one program, compile without a graph break and agree with eager."""

    def program(x: Tensor) -> list[Tensor]:
        return [call(x) for call in WITHIN.values()]

    x = torch.arange(3.0, requires_grad=True)
    made = torch.compile(program, fullgraph=True, backend="eager")(x)
    for name, compiled, eager in zip(WITHIN, made, program(x), strict=True):
        assert compiled.dtype == eager.dtype, name
        assert compiled.tolist() == eager.tolist(), name
        assert compiled.requires_grad == eager.requires_grad, name


BESIDE: dict[str, list[complex]] = {
    "bool": [True, False],
    "uint8": [True, 255],
    "int64": [-3, 2**53 + 1],
    "float16": [0.1, 3e4],
    "bfloat16": [True, -3, 0.1, 1.0019531250001],
    "float32": [0.1, -0.0, 1e38, float("-inf"), float("nan")],
    "complex64": [3, 0.1, float("inf"), 0.1j],
}
"""Numbers that are rounded to the dtype of the tensors beside them."""


@pytest.mark.slow
def test_compile__list_of_tensors_and_numbers_is_one_graph() -> None:
    """Numbers beside tensors are rounded as in eager code, without a graph break."""

    def program(x: Tensor) -> list[Tensor]:
        cast = [(x.to(getattr(torch, dtype)), numbers) for dtype, numbers in BESIDE.items()]
        return [xbridge.asarray([y[0], *numbers, y[1]]) for y, numbers in cast]

    x = torch.arange(2.0)
    made = torch.compile(program, fullgraph=True, backend="eager")(x)
    for dtype, compiled, eager in zip(BESIDE, made, program(x), strict=True):
        assert str(compiled.dtype) == str(eager.dtype) == f"torch.{dtype}"
        assert str(compiled.tolist()) == str(eager.tolist()), dtype


@pytest.mark.slow
@pytest.mark.parametrize("number", [3.40282356e38, 1e300, 2**24 + 1, complex(0.1, float("inf"))])
def test_compile__number_at_the_limits_of_a_dtype_is_what_it_is_in_eager_code(number: complex) -> None:
    """A number that may not fit breaks the graph: it is rounded, or raises the error of eager code."""

    def call(x: Tensor) -> Tensor:
        made: Tensor = xbridge.asarray([x[0], number])
        return made

    dtype = torch.complex64 if isinstance(number, complex) else torch.float32

    def outcome(fn: Callable[[Tensor], Tensor]) -> object:
        try:
            return fn(torch.ones(1, dtype=dtype)).tolist()
        except xbridge.ValueLossError as error:
            return error.reason

    assert outcome(torch.compile(call, backend="eager")) == outcome(call)


SCALAR = np.float64(2.5)
SCALARS: dict[str, Callable[[Tensor], Tensor]] = {
    "to_torch": lambda x: xbridge.to_torch(SCALAR) + x,
    "align": lambda x: xbridge.align(x, SCALAR)[1] + x,
    "like": lambda x: xbridge.asarray(SCALAR, like=x) + x,
    "a list": lambda x: xbridge.asarray([x[0], 2.5]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCALARS)
def test_compile__numbers_are_what_they_are_in_eager_code(name: str) -> None:
    """A NumPy scalar, which the compiler takes for an array, or a number in a list is the same."""
    x = torch.arange(3.0)
    compiled, eager = torch.compile(SCALARS[name], backend="eager")(x), SCALARS[name](x)
    assert compiled.dtype == eager.dtype
    assert compiled.tolist() == eager.tolist()


def default(x: Tensor) -> Tensor:
    narrowed: Tensor = xbridge.to_backend(x * 2, "torch", dtype="default")
    return narrowed


@pytest.mark.slow
def test_compile__default_dtype_breaks_the_graph() -> None:
    """Where values decide the dtype, the graph breaks, and the result agrees with eager."""
    x = torch.arange(3.0, dtype=torch.float64)
    compiled = torch.compile(default, backend="eager")
    assert compiled(x).dtype == default(x).dtype == torch.float32
    assert compiled(x).tolist() == default(x).tolist()
    with pytest.raises(xbridge.ValueLossError, match="does not fit float32"):
        compiled(x + 1e300)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["to_backend(x * 2, 'torch', dtype='float64')", "asarray(x * 2)"])
def test_compile__first_call_of_a_process(call: str) -> None:
    """The first call of a process may be a compiled one."""
    code = f"""
import torch, xbridge
print(torch.compile(lambda x: xbridge.{call}, fullgraph=True, backend="eager")(torch.ones(2)).tolist())
"""
    assert fresh.forked(code, "torch._dynamo") == (0, ["[2.0, 2.0]"])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"dtype": "float64"}, {"copy": True}])
def test_to_numpy__compiled_call_cuts_the_graph(options: dict[str, object]) -> None:
    """Compiled code cuts gradients at the same place as eager."""

    def loss(x: Tensor) -> Tensor:
        y = x * 2
        held: Tensor = torch.as_tensor(np.array(xbridge.to_numpy(y, **options)))  # type: ignore[arg-type]
        return (held * y).sum()

    x = torch.arange(3.0, requires_grad=True)
    loss(x).backward()  # type: ignore[no-untyped-call] # theirs
    eager, x.grad = x.grad, None
    torch.compile(loss, backend="eager")(x).backward()
    assert eager is not None
    assert x.grad is not None
    assert x.grad.tolist() == eager.tolist() == [0.0, 4.0, 8.0]


def leave(x: Tensor) -> object:
    return xbridge.to_numpy(x)


@pytest.mark.slow
def test_to_numpy__compiled_call_copies_read_only_results() -> None:
    """Where eager gives a read-only view, compiled code gets a writable copy."""
    x = torch.ones(3, requires_grad=True)
    copied = torch.compile(leave, backend="eager")(x)
    copied[0] = 5
    assert x.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(xbridge.CopyError, match="make its read-only array writable"):
        torch.compile(lambda x: xbridge.to_numpy(x, copy=False), backend="eager")(x)


@pytest.mark.slow
def test_to_numpy__compiled_call_shares_writable_results() -> None:
    """What eager shares writable is shared in compiled code too."""
    x = torch.ones(3)
    shared = torch.compile(leave, backend="eager")(x)
    shared[0] = 5
    assert x.tolist() == [5.0, 1.0, 1.0]


@pytest.mark.slow
def test_to_backend__compiled_call_copies_numpy_memory() -> None:
    """A write to the result does not reach the array, whose read-only flag the compiler has changed."""
    for a in (np.ones(3, "f4"), np.ones(3, "f4")):
        a.flags.writeable = False
        made = torch.compile(lambda a: xbridge.to_backend(a, "torch"), backend="eager")(a)
        made[0] = 5
        constant = torch.compile(lambda x, a=a: xbridge.align(x, a)[1], backend="eager")(made)
        constant[0] = 5
        assert a.tolist() == [1.0, 1.0, 1.0]
        with pytest.raises(xbridge.CopyError, match="does not show whether it is read-only"):
            torch.compile(lambda a: xbridge.to_torch(a, copy=False), backend="eager")(a)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"dtype": "float64"}, {"copy": True}], ids=str)
@pytest.mark.parametrize("requires_grad", [True, False])
def test_to_numpy__read_only_result_can_be_used_by_the_compiled_code_that_follows(
    options: dict[str, Any], requires_grad: bool
) -> None:
    """With `writable=False` compiled code gets a copy, since the compiler fails at what it cannot write."""

    def double(x: Tensor) -> list[object]:
        held = xbridge.to_numpy(x, writable=False, **options)
        inside = xbridge.tree.to_numpy({"x": x}, writable=False, **options)["x"]
        torch._dynamo.graph_break()
        return [held, inside]

    x = torch.ones(3, requires_grad=requires_grad)
    for made in torch.compile(double, backend="eager")(x):
        made[:] = 5
        assert x.tolist() == [1.0, 1.0, 1.0]
        assert xbridge.dtype_of(made) == options.get("dtype", "float32")
