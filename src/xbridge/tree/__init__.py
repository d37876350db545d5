"""Trees of containers: convert every array in them, and leave everything else as it is.

A tree is flattened once, its arrays are converted together, and a tree of the same form is built from the
results.

>>> import numpy as np
>>> from xbridge import tree
>>> tree.map(np.sum, {"x": np.ones(3), "y": [np.ones(2)], "name": "digits"})
{'x': np.float64(3.0), 'y': [np.float64(2.0)], 'name': 'digits'}
"""

# The functions are imported on first access, because they need NumPy.

from importlib import import_module
from sys import modules

TYPE_CHECKING = False
if TYPE_CHECKING:
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
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            missing = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(missing, name=name, obj=modules[__name__])
        found: object = getattr(import_module("xbridge.tree.verbs"), name)
        globals()[name] = found
        return found


__all__ = ["align", "map", "to_backend", "to_cupy", "to_dask", "to_jax", "to_numpy", "to_torch"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
