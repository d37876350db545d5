"""The classes that are registered as containers with optree, torch or JAX, which are looked up in this order.

A library is asked only if the program has imported it. xbridge registers nothing itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from operator import is_not
from typing import Any, TypeAlias

Registration: TypeAlias = "tuple[Callable[..., Any], Callable[..., Any], Callable[..., list[str]]]"
"""The functions `flatten`, `unflatten` and `paths` of a `Container`."""


def find_registration(cls: type, x: object) -> Registration | None:
    """Return the functions that were registered for the class of `x`; None if there are none."""
    return _find_in_optree(cls) or _find_in_torch(cls) or _find_in_jax(cls, x)


def _find_in_optree(cls: type) -> Registration | None:
    optree: Any = sys.modules.get("optree")
    found = optree and optree.register_pytree_node.get(cls)
    if not found or found.type is not cls:  # optree returns an entry for every named tuple
        return None

    def paths(x: Any, _: object) -> list[str]:
        return [accessor.codify("") for accessor in optree.tree_accessors(x, is_leaf=partial(is_not, x))]

    return lambda x: found.flatten_func(x)[:2], found.unflatten_func, paths


def _find_in_torch(cls: type) -> Registration | None:
    tree: Any = sys.modules.get("torch.utils._pytree")
    found = tree and tree.SUPPORTED_NODES.get(cls)
    if not found:
        return None
    return found.flatten_fn, lambda form, parts: found.unflatten_fn(parts, form), partial(_format_paths, tree)


def _find_in_jax(cls: type, x: object) -> Registration | None:
    # Not every version of JAX can look up a class, so an object is passed to it. Named tuples are left out,
    # because JAX treats every tuple with `_fields` as one, registered or not.
    tree: Any = sys.modules.get("jax.tree_util")
    named = issubclass(cls, tuple) and hasattr(cls, "_fields")
    if tree is None or named or tree.all_leaves((x,)):
        return None

    def flatten(x: Any) -> tuple[Any, Any]:
        children, form = tree.tree_flatten(x, is_leaf=partial(is_not, x))
        return children, form

    return flatten, tree.tree_unflatten, partial(_format_paths, tree)


def _format_paths(tree: Any, x: Any, _: object) -> list[str]:
    """Return the paths of children as torch or JAX formats them."""
    named, _ = tree.tree_flatten_with_path(x, is_leaf=partial(is_not, x))
    return [tree.keystr(path) for path, _ in named]
