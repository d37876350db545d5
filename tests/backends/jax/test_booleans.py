"""Booleans whose bytes are not 0 and 1 mean the same in JAX as in the library that they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xbridge
from xbridge import tree

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402 -- once JAX is there

if TYPE_CHECKING:
    from collections.abc import Callable

BYTES = np.array([255, 2, 0, 1] * 64, "u1")


class Exporter:
    """Of a library that has no backend."""

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        return BYTES.view(bool)


SOURCES: dict[str, Callable[[], Any]] = {
    "numpy": lambda: BYTES.view(bool),
    "strided": lambda: np.repeat(BYTES, 2).view(bool)[::2],
    "read-only": lambda: np.frombuffer(BYTES.tobytes(), bool),
    "large": lambda: np.resize(BYTES, 1 << 17).view(bool),
    "torch": lambda: pytest.importorskip("torch").from_numpy(BYTES.view(bool).copy()),
    "dask": lambda: pytest.importorskip("dask.array").from_array(BYTES.view(bool)),
    "array_api_strict": lambda: pytest.importorskip("array_api_strict").asarray(BYTES.view(bool)),
    "an exporter": Exporter,
}

CALLS: dict[str, Callable[[Any], Any]] = {
    "to_jax": xbridge.to_jax,
    "dtype": lambda x: xbridge.to_jax(x, dtype="bool"),
    "copy": lambda x: xbridge.to_jax(x, copy=True),
    "device": lambda x: xbridge.to_jax(x, device="cpu"),
    "like": lambda x: xbridge.asarray(x, like=jnp.ones(1)),
    "a list": lambda x: xbridge.asarray([x, x], backend="jax")[1],
    "align": lambda x: xbridge.align(jnp.ones(1), x)[1],
    "a tree": lambda x: tree.to_jax({"x": x}, exporters=True)["x"],
    "a transfer": lambda x: xbridge.transfer(x, "jax").result(),
    "prefetch": lambda x: next(iter(xbridge.prefetch([x], "jax"))),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("source", SOURCES)
def test_from_numpy__any_byte_but_zero_is_true(source: str, call: str) -> None:
    """JAX gets bytes 0 and 1, whoever makes the booleans and whichever call converts them."""
    x = SOURCES[source]()
    wanted = np.resize(BYTES != 0, np.asarray(x).shape)
    for _ in range(3):  # planned, stored and repeated
        made = CALLS[call](x)
        assert int(made.sum()) == wanted.sum()
        assert np.array_equal(np.asarray(jnp.where(made, 1, 0)), wanted)
        assert set(np.asarray(made).view("u1").tolist()) == {0, 1}


@pytest.mark.parametrize("library", ["numpy", "torch", "dask"])
def test_aligned__argument(library: str) -> None:
    """A function of JAX gets bytes 0 and 1."""
    fn = xbridge.aligned(backend="jax")(lambda x: jnp.where(x, 1, 0))
    assert xbridge.to_list(fn(SOURCES[library]())) == (BYTES != 0).tolist()


def test_from_numpy__bytes_of_the_source_stay() -> None:
    """The memory of the source is not changed."""
    x = BYTES.copy().view(bool)
    xbridge.to_jax(x)
    assert np.array_equal(x.view("u1"), BYTES)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_aligned__result_in_compiled_code(library: str) -> None:
    """What a function returns to compiled code of JAX has bytes 0 and 1 too."""
    made = SOURCES[library]()
    shapes: Any = {"result": lambda _: np.empty(len(BYTES), bool)} if library == "numpy" else {}
    fn = xbridge.aligned(backend=library, **shapes)(lambda _: made)
    for run in (fn, jax.jit(fn)):
        assert int(jnp.sum(run(jnp.ones(2)))) == np.count_nonzero(BYTES)
