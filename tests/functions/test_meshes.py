"""Calls on several devices: meshes, `shard_map`, `pmap` and explicit shardings of JAX."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent
from typing import Any

import pytest
from crossed import X, array, in_torch, same, slope, value
from versions import needs_newer_jax

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")


@needs_newer_jax
@pytest.mark.parametrize("weighted", [False, True])
def test_aligned__varies_over_the_axes_of_a_mesh(*, weighted: bool) -> None:
    """A result varies over the axes that any argument varies over, and so does its derivative."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    along, whole = jax.sharding.PartitionSpec("i"), jax.sharding.PartitionSpec()
    weight = torch.nn.Parameter(torch.tensor(1.0).double()) if weighted else 1
    f = in_torch(lambda w, x: w * x * torch.sin(x) * weight)

    def loss(w: Any, x: Any) -> Any:
        y = f(w, x)
        assert jax.typeof(y).str_short() == jax.typeof(x).str_short()
        return jax.lax.psum(y.sum(), "i")

    rows = jax.shard_map(jax.grad(loss, argnums=1), mesh=mesh, in_specs=(whole, along), out_specs=along)
    same(rows(array(2.0), array()), 2 * slope(X))
    one = jax.shard_map(jax.grad(loss), mesh=mesh, in_specs=(whole, along), out_specs=whole)
    assert float(jax.jit(one)(array(2.0), array())) == pytest.approx(value(X).sum())


@needs_newer_jax
@pytest.mark.slow
def test_aligned__has_the_gradients_of_a_mesh() -> None:
    """On four devices, what shard_map and pmap sum over devices is what the pure program of JAX sums.

    Results and gradients stay on the devices of their arguments.
    """
    program = """
        import os
        from itertools import pairwise

        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        import jax, numpy as np, torch
        from jax import lax, numpy as jnp
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
        from xbridge import aligned

        mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
        x, w = jnp.linspace(0.5, 2, 8), jnp.float32(2)
        weight = torch.nn.Parameter(torch.tensor(3.0))

        def vjp(g, y, x):
            return 3 * g * (np.sin(x) + x * np.cos(x))

        jvp = lambda t, y, x: vjp(t[0], y, x)
        functions = [
            aligned(backend="torch")(lambda t: torch.sin(t) * t * weight),
            aligned(backend="numpy", signature="()->()", vjp=vjp, jvp=jvp)(lambda x: 3 * np.sin(x) * x),
        ]
        pure = lambda t: 3 * jnp.sin(t) * t

        def ways(f):
            def outside(w, x):
                both = jax.value_and_grad(lambda w, x: jnp.sum(f(w * x)))(w, x)
                return jax.tree.map(lambda y: lax.psum(y, "i"), both)

            def inside(w, x):
                return jax.value_and_grad(lambda w, x: lax.psum(jnp.sum(f(w * x)), "i"))(w, x)

            for check in (True, False):
                for each in (outside, inside):
                    mapped = jax.shard_map(
                        each, mesh=mesh, in_specs=(P(), P("i")), out_specs=P(), check_vma=check
                    )
                    yield mapped(w, x)
                    yield jax.jit(mapped)(w, x)
            rows = {"mesh": mesh, "in_specs": P("i"), "out_specs": P("i")}
            yield jax.jit(jax.shard_map(lambda x: jax.jvp(f, (x,), (x,))[1], **rows))(x)
            yield jax.jit(jax.shard_map(jax.vmap(jax.grad(f)), **rows))(x)
            yield jax.grad(lambda x: jax.shard_map(f, **rows)(x).sum())(x)
            yield jax.pmap(lambda x: lax.psum(jax.grad(lambda x: f(x).sum())(x), "i"), axis_name="i")(
                x.reshape(4, 2)
            )
            yield jax.jit(jax.grad(lambda x: f(x).sum()))(jax.device_put(x, NamedSharding(mesh, P("i"))))

        there = jax.device_put(x, jax.devices()[2])
        host = aligned(backend="torch", device="cpu")(torch.sin)
        for f in (functions[1], host):
            both = jax.value_and_grad(lambda x: f(x).sum())(there)
            for found in (*both, *jax.jvp(f, (there,), (there,)), jax.vmap(f)(there)):
                assert found.devices() == there.devices()

        places = [there, jax.device_put(x, jax.devices()[1]), jax.device_put(x, NamedSharding(mesh, P("i")))]
        product = aligned(backend="torch", device="cpu")(lambda a, b: (torch.sin(a) * b).sum())
        for a, b in pairwise([x, *places, x]):
            made = jax.grad(product, (0, 1))(a, b)
            assert [y.devices() for y in made] == [y.devices() for y in (a, b)]
            np.testing.assert_allclose(made, (np.cos(a) * b, np.sin(a)), rtol=1e-5)
            curve = jax.hessian(lambda a: product(a, b))(a)
            np.testing.assert_allclose(curve, np.diag(-np.sin(a) * b), rtol=1e-5)

        expected = [*ways(pure)]
        for f in functions:
            for ours, theirs in zip(ways(f), expected, strict=True):
                jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), ours, theirs)
            rows = jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
            total = lambda x: rows(x).sum()
            for way in (rows, jax.jit(rows), jax.grad(total), jax.jit(jax.grad(total))):
                assert way(jax.device_put(x, NamedSharding(mesh, P("i")))).sharding.spec == P("i")
            try:
                jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P())(x)
            except ValueError:
                continue
            raise AssertionError("a result that varies was taken for one that is the same on all devices")
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", dedent(program)], check=True)


@needs_newer_jax
@pytest.mark.slow
def test_aligned__refuses_explicit_sharding_outside_of_auto_axes() -> None:
    """On four devices, arrays of explicit sharding are an error that names the call that works."""
    program = """
        import os

        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        import jax, numpy as np, pytest, torch, xbridge
        from jax import numpy as jnp
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

        mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
        x = jnp.linspace(0.5, 2, 16).reshape(4, 4)
        f = xbridge.aligned(backend="torch")(torch.sin)
        ways = [
            lambda f: f,
            lambda f: jax.vmap(lambda x: f(x) * x),
            lambda f: jax.grad(lambda x: (f(x) * x).sum()),
        ]
        with jax.set_mesh(mesh):
            y = jax.device_put(x, NamedSharding(mesh, P("a", "b")))
            for way in ways:
                with pytest.raises(xbridge.DeviceError, match="auto_axes"):
                    jax.jit(way(f))(y)
                found = jax.jit(jax.sharding.auto_axes(way(f), out_sharding=P()))(y)
                np.testing.assert_allclose(found, way(jnp.sin)(x), rtol=1e-5)
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", dedent(program)], check=True)
