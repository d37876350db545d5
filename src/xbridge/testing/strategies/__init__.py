"""Hypothesis strategies for arrays of any backend: every dtype, shape, layout, flag and bit pattern.

The strategies define the valid arrays, not how often each occurs. Each option takes a value or another
strategy. An option that is left open is chosen to fit the others.
"""

from xbridge.errors import MissingLibraryError

try:
    import hypothesis as _hypothesis  # noqa: F401 -- reports a missing library here
except ImportError as _error:
    raise MissingLibraryError.build(
        "draw arrays", "Hypothesis is not installed", "pip install 'xbridge-array[testing]'"
    ) from _error

from xbridge.testing.strategies._arrays import arrays, host_arrays
from xbridge.testing.strategies._arrays import samples as samples  # for the conformance suite
from xbridge.testing.strategies._names import devices, dtypes, layouts
from xbridge.testing.strategies._together import arrays_together, xp_dtypes

__all__ = [
    "arrays",
    "arrays_together",
    "devices",
    "dtypes",
    "host_arrays",
    "layouts",
    "xp_dtypes",
]
