"""Trees of containers: convert every array in them, and leave everything else as it is.

A tree is flattened once, its arrays are converted together, and a tree of the same form is built from the
results.

>>> import numpy as np
>>> from xbridge import tree
>>> tree.map(np.sum, {"x": np.ones(3), "y": [np.ones(2)], "name": "digits"})
{'x': np.float64(3.0), 'y': [np.float64(2.0)], 'name': 'digits'}
"""

from xbridge._deprecation import missing_name
from xbridge.tree.verbs import (
    align,
    map,  # noqa: A004 -- other libraries have this name too
    to_backend,
    to_cupy,
    to_dask,
    to_jax,
    to_numpy,
    to_torch,
)

__all__ = ["align", "map", "to_backend", "to_cupy", "to_dask", "to_jax", "to_numpy", "to_torch"]


def __getattr__(name: str) -> object:
    """Raise an error with the name that was meant."""
    raise missing_name(globals(), name)
