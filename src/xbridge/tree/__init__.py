"""Whole batches: convert every array in a tree of containers, and leave everything else as it is.

A tree is taken apart once, its arrays are converted type by type through the table that `xbridge.to_backend`
reads, and a tree of the same form is put together of the results. Needs optree, the extra `tree`.

>>> import numpy as np
>>> from xbridge import tree
>>> tree.map(np.sum, {"x": np.ones(3), "y": [np.ones(2)], "name": "digits"})
{'x': np.float64(3.0), 'y': [np.float64(2.0)], 'name': 'digits'}
"""

from xbridge.errors import MissingLibraryError

try:
    import optree as _optree  # noqa: F401 -- to say here what is missing
except ImportError as _error:
    raise MissingLibraryError.build(
        "convert trees", "optree is not installed", "pip install 'xbridge-array[tree]'"
    ) from _error

from xbridge.tree.verbs import align, map, to_backend, to_numpy  # noqa: A004 -- what others call it too

__all__ = ["align", "map", "to_backend", "to_numpy"]
