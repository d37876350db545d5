"""Gymnasium's `array_conversion` by xbridge: one call for an array, and one for a tree.

It takes the place of the functions in lines 80 to 146 of `gymnasium/wrappers/array_conversion.py`. The
wrapper classes and `module_namespace` stay.
"""

import sys
from functools import cache
from types import ModuleType
from typing import Any

from array_api_compat import is_array_api_obj
from gymnasium.wrappers import array_conversion as theirs

import xbridge
from xbridge import tree


@cache
def library(xp: ModuleType) -> str:
    """Return the name of the library of a namespace, which is looked up once."""
    return xbridge.backend_of(xp.empty(0))


def array_conversion(value: Any, xp: ModuleType, device: Any = None) -> Any:
    """Convert the arrays and numbers in a value to the library of `xp`.

    Parameters
    ----------
    value : tree
        Arrays of any library, Python numbers, and nested containers of them. `None` and text are returned
        unchanged.
    xp : module
        The namespace of the target library.
    device : optional
        The device of the target. NumPy has the host only, and ignores it.

    Returns
    -------
    tree
        The same containers, with arrays of the target. A dtype that the target lacks becomes the nearest one.
    """
    if value is None:
        return None
    name = library(xp)
    device = None if name == "numpy" else device
    if is_array_api_obj(value):
        return xbridge.to_backend(value, name, device=device, dtype="nearest")
    return tree.to_backend(value, name, device=device, dtype="nearest", scalars=True)


def install() -> None:
    """Replace `array_conversion` in every module of Gymnasium that has imported it, or will."""
    original = theirs.array_conversion
    for name, module in [*sys.modules.items()]:
        if name.startswith("gymnasium") and vars(module).get("array_conversion") is original:
            setattr(module, "array_conversion", array_conversion)  # noqa: B010 -- a module has no such attribute for a type checker
