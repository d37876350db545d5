"""The dtypes that tests go through, and calls of `xbridge.to_backend`; arrays come from `xbridge.testing`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from inside import DTYPES, get_backend

from xbridge import is_available, known_backends
from xbridge.testing.conformance._cases import swept_dtypes
from xbridge.testing.strategies import arrays, dtypes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xbridge.protocol import Array

EXTENDED = tuple(word for word in DTYPES if not hasattr(np, word))
"""The dtypes that NumPy has through ml_dtypes."""

HOST_DTYPES = tuple(
    word
    for word, facts in DTYPES.items()
    if not facts.is_packed and (word not in EXTENDED or find_spec("ml_dtypes"))
)

SWEPT = swept_dtypes("numpy")
"""The dtypes that a parametrised test goes through: four, or with --exhaustive all."""


def swept(words: Iterable[str]) -> list[str]:
    """Return the dtypes that a test of some of them goes through: those of the sweep, or at least one."""
    some = list(words)
    return [word for word in some if word in SWEPT] or some[:1]


def host_dtype(word: str) -> np.dtype[Any]:
    """NumPy's dtype of a canonical name."""
    if word in EXTENDED:
        import ml_dtypes

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, word))
        return extended
    return np.dtype(word)


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
