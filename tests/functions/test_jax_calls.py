"""What JAX's primitives need of JAX: names that it does not document."""

from __future__ import annotations

import pytest

jax = pytest.importorskip("jax")

from xbridge.functions.jax import private  # noqa: E402 -- only where the library is


@pytest.mark.parametrize("name", private.__all__)
def test_private__name_is_in_every_version(name: str) -> None:
    """Each name of JAX that functions use is in this version."""
    assert getattr(private, name) is not None
    assert len(private.__all__) <= 10
