"""Strategy of calls of `xbridge.to_backend`: an array, a target and keywords."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st
from inside import get_backend

from xbridge import is_available, known_backends
from xbridge.testing.strategies import arrays, dtypes

if TYPE_CHECKING:
    from xbridge.protocol import Array


class Conversion(NamedTuple):
    """A call of `xbridge.to_backend`."""

    array: Array
    """The source."""
    target: str
    """The name of the target backend."""
    options: dict[str, Any]
    """Keywords with valid values; a combination may be impossible."""


def conversions() -> st.SearchStrategy[Conversion]:
    """Conversions from and to every backend that is installed, with any keywords."""
    names = [name for name in known_backends() if is_available(name)]
    sources = {name: arrays(name, requires_grad="any", nan="any") for name in names}
    source = st.sampled_from(names).flatmap(sources.__getitem__)
    options = {name: _options(name) for name in names}
    return st.sampled_from(names).flatmap(
        lambda target: st.builds(Conversion, source, st.just(target), options[target])
    )


def _options(target: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "device": st.sampled_from([None, *get_backend(target).devices()]),
            "dtype": st.sampled_from([None, "default", "nearest"]) | dtypes(target),
            "copy": st.sampled_from([None, True, False]),
            "grad": st.sampled_from([None, "keep", "detach"]),
        },
    )
