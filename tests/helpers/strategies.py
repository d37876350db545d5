"""The dtypes that tests go through, and options of `to_backend`; arrays come from `xbridge.testing`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from inside import DTYPES

from xbridge.testing.conformance._cases import swept_dtypes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EXTENDED = tuple(word for word in DTYPES if not hasattr(np, word))
"""The dtypes that NumPy has through ml_dtypes."""

HOST_DTYPES = tuple(word for word in DTYPES if word not in EXTENDED or find_spec("ml_dtypes"))

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


def options(dtypes: Sequence[str] = HOST_DTYPES) -> st.SearchStrategy[dict[str, Any]]:
    """Options of `to_backend`, any with any other."""
    return st.fixed_dictionaries(
        {},
        optional={
            "device": st.sampled_from([None, "cpu"]),
            "dtype": st.sampled_from([None, "default", "nearest", *dtypes]),
            "copy": st.sampled_from([None, True, False]),
            "grad": st.sampled_from([None, "keep", "detach"]),
        },
    )
