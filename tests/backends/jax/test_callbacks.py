"""Conversions in a callback of compiled JAX code, where JAX may wait for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xbridge

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402 -- once JAX is there

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS: dict[str, Callable[[Any], Any]] = {
    "dtype": lambda x: xbridge.asarray(x, dtype="float16"),
    "copy": lambda x: xbridge.asarray(x, copy=True),
    "a list": lambda x: xbridge.asarray([x, x]),
    "a cast": lambda x: xbridge.asarray(x, dtype="default", like=x[0]),
}


def run(fn: Callable[[Any], Any]) -> Any:
    shape = jax.eval_shape(lambda: jnp.ones(2))
    return jax.jit(lambda x: jax.pure_callback(fn, shape, x))(jnp.ones(2))


@pytest.mark.parametrize("call", CALLS)
def test_refuse_in_callback__conversion_within_jax(call: str) -> None:
    """What JAX would compute is refused in place of a wait that may have no end."""
    seen: list[Exception] = []

    def fn(x: Any) -> Any:
        try:
            CALLS[call](x)
        except xbridge.OptionError as error:
            seen.append(error)
        return xbridge.to_numpy(x)

    assert run(fn).tolist() == [1.0, 1.0]
    assert len(seen) == (call != "a cast")


def test_refuse_in_callback__conversion_to_the_host() -> None:
    """The advice, a conversion to NumPy, is possible there."""
    assert run(lambda x: xbridge.to_numpy(x, dtype="float64").astype("f4")).tolist() == [1.0, 1.0]
    assert run(lambda x: np.asarray(xbridge.to_jax(np.asarray(x)))).tolist() == [1.0, 1.0]
