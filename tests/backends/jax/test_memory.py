"""Memory on its way to JAX: copied once, to where JAX takes it over, and never read from the source again."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import forget_calls

import xbridge
from xbridge._host import memory as _host

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402 -- once JAX is there

from xbridge.backends import jax as backend  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from jax import Array

    from xbridge.protocol import HostArray


def address(x: Array) -> int:
    return int(x.unsafe_buffer_pointer())


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[HostArray]:
    """What the host has copied or cast."""
    made: list[HostArray] = []

    def told(verb: Callable[..., HostArray]) -> Callable[..., HostArray]:
        def tell(*args: object) -> HostArray:
            host = verb(*args)
            made.extend([host] * (host.size > 2))  # what is learned is tried with an array of two items
            return host

        return tell

    for verb in ("copy", "astype"):
        monkeypatch.setattr(_host, verb, told(getattr(_host, verb)))
    forget_calls()  # what was learned calls the functions themselves
    return made


def row_by_row(shape: tuple[int, ...]) -> HostArray:
    return np.arange(np.prod(shape), dtype="f4").reshape(shape)


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"dtype": "bfloat16"}, {"dtype": "int32"}])
@pytest.mark.parametrize(
    "make",
    [
        lambda: row_by_row((512, 256)),
        lambda: row_by_row((512, 256)).T,
        lambda: row_by_row((512, 512))[::2, ::-1],
        lambda: row_by_row((512, 256)).astype(">f4"),
        lambda: np.broadcast_to(np.arange(512, dtype="f4"), (256, 512)),
        lambda: row_by_row((64, 128, 16)).transpose(1, 2, 0),
    ],
    ids=["rows", "columns", "backwards", "swapped", "repeated", "transposed"],
)
def test_to_backend__large_array_is_copied_once(
    copies: list[HostArray], make: Callable[[], HostArray], options: dict[str, Any]
) -> None:
    """A large array is copied or cast in one pass, into memory that JAX then owns."""
    a = make() if options.get("dtype") != "int32" else make().astype("i2")
    x = xbridge.to_backend(a, "jax", **options)
    assert len(copies) == 1
    assert address(x) == copies[0].ctypes.data
    np.testing.assert_array_equal(np.asarray(x), a.astype(x.dtype))


def test_to_backend__cast_by_jax_starts_from_a_copy(copies: list[HostArray]) -> None:
    """A cast that only JAX can do reads a copy, so a later write is not seen."""
    a = row_by_row((512, 256))
    x = xbridge.to_backend(a, "jax", dtype="float16")
    a[...] = 0
    assert len(copies) == 1
    np.testing.assert_array_equal(np.asarray(x), jnp.asarray(row_by_row((512, 256))).astype("f2"))


def test_from_numpy__memory_is_released_with_the_array() -> None:
    """JAX alone keeps the copy alive, and lets it go with the array."""
    a = row_by_row((512, 256))
    held: list[weakref.ref[HostArray]] = []
    copy = _host.copy(a, "C")
    held.append(weakref.ref(copy))
    x = backend.from_numpy(copy)
    assert address(x) == copy.ctypes.data
    del copy
    gc.collect()
    others = [np.full_like(a, 7) for _ in range(8)]
    np.testing.assert_array_equal(np.asarray(x), a)
    del x
    gc.collect()
    assert held[0]() is None
    assert all((other == 7).all() for other in others)
