"""What JAX's primitives need of JAX: names that it does not document, and a rule for `jax.checkpoint`."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from xbridge import aligned

jax = pytest.importorskip("jax")

from xbridge.functions.jax import calls, private  # noqa: E402 -- only where the library is


@pytest.mark.parametrize("name", private.__all__)
def test_private__name_is_in_every_version(name: str) -> None:
    """Each name of JAX that functions use is in this version."""
    assert getattr(private, name) is not None
    assert len(private.__all__) <= 10


@pytest.mark.parametrize("unknown", [False, True])
def test_keep_in_checkpoint__call_runs_once_on_the_side_that_knows_its_inputs(unknown: bool) -> None:
    """A call of unknown inputs runs in the backward pass alone, and any other with the value."""
    eqn = SimpleNamespace(invars=["x"], outvars=["y"])
    found = calls._keep_in_checkpoint(None, [unknown], [False], eqn)
    assert found == ((None, eqn, [True], [True], ["x"]) if unknown else (eqn, None, [False], [False], []))


def test_callback__argument_stays_read_only() -> None:
    """Compiled code passes an array that owns its memory, and a function cannot make that writable."""

    def write(x: np.ndarray) -> np.ndarray:
        x.setflags(write=True)
        return x

    f = aligned(backend="numpy", result=np.empty_like)(write)
    with pytest.raises(jax.errors.JaxRuntimeError, match="cannot set WRITEABLE flag"):
        jax.block_until_ready(jax.jit(f)(jax.numpy.ones(3)))
