"""Random programs of two libraries under random transforms, compared with the program of one library.

A program is a chain of blocks on a vector. Each block is computed by the caller's library, or is a function
of another library. A transform makes another function of a vector from one, so transforms compose.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from threading import Barrier
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from crossed import by_hand, same, wide
from hypothesis import strategies as st
from inside import get_backend

import xbridge

if TYPE_CHECKING:
    from collections.abc import Callable

    Vector = Callable[[Any], Any]

aligned: Any = xbridge.aligned

LENGTH = 3
ORDER = 2
"""The highest derivative of the functions of NumPy in `crossed`."""

OPERATIONS: dict[str, Callable[[Any, Any, float], Any]] = {
    "sin": lambda xp, x, k: xp.sin(k * x),
    "tanh": lambda xp, x, k: xp.tanh(x) * k,
    "square": lambda xp, x, k: x * x + k,
    "exp": lambda xp, x, k: xp.exp(-k * x * x),
    "quotient": lambda xp, x, k: x / (1 + k * x * x),
    "total": lambda xp, x, k: x * xp.sum(x) * k,
    "cumsum": lambda xp, x, k: xp.cumsum(x, 0) * k,
    "flip": lambda xp, x, k: xp.flip(x, (0,)) - k,
    "roll": lambda xp, x, k: xp.roll(x, 1) * x,
    "softmax": lambda xp, x, k: xp.exp(k * x) / xp.sum(xp.exp(k * x)),
    "where": lambda xp, x, k: xp.where(x > k, x * x, x),
}

SHAPES = ("vector", "dict", "pair", "keyword")
"""How a block takes and returns its vector."""


class Block(NamedTuple):
    """Operations in a row, and the library that computes them: the caller's, the other one, or NumPy."""

    home: str
    shape: str
    operations: tuple[tuple[str, float], ...]

    def build(self, caller: str, *, pure: bool) -> Vector:
        """Return the block as a function of a vector of the caller's library."""
        own, other = _namespace(caller), {"torch": "jax", "jax": "torch"}[caller]
        if self.home == "numpy":
            return (lambda x: x * own.sin(x)) if pure else by_hand()
        if pure or self.home == "caller":
            return lambda x: self._compute(own, x)
        xp = _namespace(other)

        def dictionary(tree: Any) -> Any:
            return {"y": self._compute(xp, tree["x"]), "n": tree["x"].sum()}

        def pair(x: Any, size: int, k: float) -> Any:
            return self._compute(xp, x) * k + (size - x.shape[0]), x.argmax()

        def whole(x: Any) -> Any:
            return self._compute(xp, x)

        if self.shape == "dict":
            f = aligned(backend=other)(dictionary)
            return lambda x: f({"x": x, "name": "x"})["y"]
        if self.shape == "pair":
            g = aligned(backend=other)(pair)
            return lambda x: g(x, x.shape[0], 1.0)[0]
        h = aligned(backend=other)(whole)
        return (lambda x: h(x=x)) if self.shape == "keyword" else h

    def _compute(self, xp: Any, x: Any) -> Any:
        for name, k in self.operations:
            x = OPERATIONS[name](xp, x, k)
        return x


def _namespace(library: str) -> Any:
    return import_module({"jax": "jax.numpy"}.get(library, library))


class Case(NamedTuple):
    """A program, and the transforms of it from the inside out."""

    caller: str
    blocks: tuple[Block, ...]
    transforms: tuple[str, ...]
    x: tuple[float, ...]


class Transform(NamedTuple):
    """A function that makes one function of a vector from another."""

    make: Callable[[Vector, Any], Vector]
    """Takes the function and a vector that is neither the input nor zero."""
    order: int = 0
    last: bool = False
    """True if no other transform can be outside of it."""


def total(f: Vector) -> Vector:
    """Return the sum of the results of a function."""
    return lambda x: f(x).sum()


def common(func: Any, stack: Any) -> dict[str, Transform]:
    """Transforms that both libraries have by the same names."""
    return {
        "grad": Transform(lambda f, t: func.grad(total(f)), 1),
        "vjp": Transform(lambda f, t: lambda x: func.vjp(f, x)[1](t)[0], 1),
        "jvp": Transform(lambda f, t: lambda x: func.jvp(f, (x,), (t,))[1], 1),
        "jacrev": Transform(lambda f, t: lambda x: func.jacrev(f)(x) @ t, 1),
        "jacfwd": Transform(lambda f, t: lambda x: func.jacfwd(f)(x) @ t, 1),
        "hessian": Transform(lambda f, t: lambda x: func.hessian(total(f))(x) @ t, 2),
        "vmap": Transform(lambda f, t: lambda x: func.vmap(f, 1)(stack([x, x * t], 1)).sum(0)),
        "threads": Transform(in_threads, last=True),
    }


def of_torch() -> dict[str, Transform]:
    import torch
    from torch.utils.checkpoint import checkpoint

    def slope(y: Any, x: Any, *, again: bool = False) -> Any:
        """Return the gradient; zero for a constant, as torch's own derivative of a linear function is."""
        made = torch.autograd.grad(y.sum() + 0 * x.sum(), x, create_graph=again)
        return made[0]

    def autograd(f: Vector, t: Any) -> Vector:
        def run(x: Any) -> Any:
            x = x.detach().requires_grad_()
            return slope(f(x) * t, x)

        return run

    def twice(f: Vector, t: Any) -> Vector:
        def run(x: Any) -> Any:
            x = x.detach().requires_grad_()
            return slope(slope(f(x) * t, x, again=True) * t, x)

        return run

    return {
        **common(torch.func, torch.stack),
        "autograd": Transform(autograd, 1, last=True),
        "autograd twice": Transform(twice, 2, last=True),
        "checkpoint": Transform(
            lambda f, t: autograd(lambda x: checkpoint(f, x, use_reentrant=False), t), 1, last=True
        ),
    }


def of_jax() -> dict[str, Transform]:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, PartitionSpec

    def scanned(f: Vector, t: Any) -> Vector:
        return lambda x: jax.lax.scan(lambda c, v: (c + f(v), f(c * v)), t, jnp.stack([x, x * t]))[1].sum(0)

    def own_vjp(f: Vector, t: Any) -> Vector:
        made = jax.custom_vjp(f)
        made.defvjp(lambda x: jax.vjp(f, x), lambda pull, g: pull(g))
        return made

    def own_jvp(f: Vector, t: Any) -> Vector:
        made = jax.custom_jvp(f)
        made.defjvp(lambda xs, ts: jax.jvp(f, xs, ts))
        return made

    def over_devices(how: str) -> Callable[[Vector, Any], Vector]:
        count = jax.device_count()
        mesh = Mesh(np.array(jax.devices()), ("i",))
        rows = PartitionSpec("i")  # type: ignore[no-untyped-call] # JAX leaves it untyped
        psum: Any = jax.lax.psum

        def make(f: Vector, t: Any) -> Vector:
            def one(x: Any) -> Any:
                return f(x[0])[None] + psum(f(x[0] * t), "i")

            if how == "pmap":
                mapped: Any = jax.pmap(lambda x: one(x[None])[0], axis_name="i")
            else:
                mapped = jax.shard_map(
                    one, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=how == "checked"
                )
            return lambda x: mapped(jnp.stack([x + i * t for i in range(count)])).sum(0)

        return make

    return {
        **common(jax, jnp.stack),
        "linearize": Transform(lambda f, t: lambda x: jax.linearize(f, x)[1](t), 1),
        "jit": Transform(lambda f, t: jax.jit(f)),
        "checkpoint": Transform(lambda f, t: jax.checkpoint(f)),
        "scan": Transform(scanned),
        "cond": Transform(lambda f, t: lambda x: jax.lax.cond(x[0] > t[0], f, lambda x: f(x * t), x)),
        "custom_vjp": Transform(own_vjp),
        "custom_jvp": Transform(own_jvp),
        "shard_map": Transform(over_devices("checked")),
        "unchecked shard_map": Transform(over_devices("unchecked")),
        "pmap": Transform(over_devices("pmap"), last=True),
    }


FORWARD = frozenset(("jvp", "jacfwd", "hessian"))
"""Transforms in forward mode, of which torch has one level for all threads: its users take turns."""
MAPPED = ("shard_map", "unchecked shard_map", "pmap")
REFUSED = {
    ("torch", "threads"): FORWARD,
    # Saved tensors have hooks in a checkpoint, and torch.func differentiates backwards only without them.
    ("torch", "checkpoint"): frozenset(("grad", "vjp", "jacrev", "hessian")),
    # A `custom_vjp` has no forward mode, and devices are divided once.
    **{("jax", way): frozenset(("custom_vjp",)) for way in ("jvp", "jacfwd", "linearize")},
    **{("jax", way): frozenset(("shard_map", "unchecked shard_map")) for way in MAPPED},
}
"""For a library and one of its transforms, those that it does not allow inside."""


def in_threads(f: Vector, t: Any) -> Vector:
    """Return the results of several threads, which run the function at the same time, one after the other."""
    count = 3
    start = Barrier(count)

    def once(x: Any) -> Any:
        with contextmanager(wide)():
            start.wait()
            return f(x)

    def run(x: Any) -> Any:
        with ThreadPoolExecutor(count) as pool:
            made = list(pool.map(once, [x, x * t, x + t]))
        return np.stack(
            [np.asarray(get_backend("torch").to_numpy(y) if hasattr(y, "detach") else y) for y in made]
        )

    return run


TRANSFORMS = {"torch": of_torch, "jax": of_jax}


def cases(caller: str) -> st.SearchStrategy[Case]:
    """Programs that a library calls, under its transforms."""
    numbers = st.sampled_from((0.25, 0.5, 0.75))
    operations = st.lists(st.tuples(st.sampled_from([*OPERATIONS]), numbers), min_size=1, max_size=3)
    homes = st.sampled_from(("other", "other", "numpy", "caller"))
    block = st.builds(Block, homes, st.sampled_from(SHAPES), operations.map(tuple))
    points = st.tuples(*[st.integers(-8, 8).map(lambda n: n / 8 + 1 / 16)] * LENGTH)
    table = TRANSFORMS[caller]()

    def limited(names: list[str]) -> tuple[str, ...]:
        """Keep transforms up to the highest derivative, and one of those that are outside of all others."""
        chosen: list[str] = []
        order = 0
        for name in names:
            order += table[name].order
            refused = REFUSED.get((caller, name), frozenset())
            if order > ORDER or refused.intersection(chosen):
                break
            chosen.append(name)
            if table[name].last:
                break
        return tuple(chosen)

    transforms = st.lists(st.sampled_from([*table]), max_size=3).map(limited)
    blocks = st.lists(block, min_size=1, max_size=3).map(tuple)
    return st.builds(Case, st.just(caller), blocks, transforms, points)


def check(case: Case) -> None:
    """Assert that a program of several libraries gives what the program of one library gives."""
    table = TRANSFORMS[case.caller]()
    with contextmanager(wide)():
        x, t = (get_backend(case.caller).from_numpy(np.array(v)) for v in (case.x, (0.5, -1.0, 0.75)))
        made, right = _program(case, pure=False), _program(case, pure=True)
        for name in case.transforms:
            made, right = table[name].make(made, t), table[name].make(right, t)
        same(made(x), right(x), 1e-8)


def check_compiled(case: Case) -> None:
    """Assert that torch compiles and exports a program, for any sizes, with the same value and gradient."""
    import torch

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return program(x)

    torch._dynamo.reset()
    with contextmanager(wide)():
        program, pure = _program(case, pure=False), _program(case, pure=True)
        x = torch.from_numpy(np.array(case.x))
        compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)
        sizes = {"x": {0: torch.export.Dim("n")}}
        exported = torch.export.export(Module(), (x,), dynamic_shapes=sizes).module()
        for size in (LENGTH, 5):
            x = torch.from_numpy(np.resize(case.x, size)).requires_grad_()
            right = pure(x)
            (expected,) = torch.autograd.grad((right * right).sum(), x)
            for made in (compiled(x), exported(x)):
                same(made, right, 1e-8)
                same(torch.autograd.grad((made * made).sum(), x)[0], expected, 1e-8)


def check_gradients(case: Case) -> None:
    """Assert that derivatives of the first and the second order are those of finite differences."""
    with contextmanager(wide)():
        program = _program(case, pure=False)
        if case.caller == "torch":
            import torch

            x = torch.from_numpy(np.array(case.x)).requires_grad_()
            assert torch.autograd.gradcheck(program, (x,), check_forward_ad=True)
            assert torch.autograd.gradgradcheck(program, (x,))
        else:
            from jax.test_util import check_grads

            x = get_backend("jax").from_numpy(np.array(case.x))
            check_grads(program, (x,), order=2, rtol=1e-4)  # type: ignore[no-untyped-call] # theirs


def _program(case: Case, *, pure: bool) -> Vector:
    parts = [block.build(case.caller, pure=pure) for block in case.blocks]

    def run(x: Any) -> Any:
        for part in parts:
            x = part(x)
        return x

    return run
