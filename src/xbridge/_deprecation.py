"""Deprecated names, which work as before and warn at the line that uses them.

The policy is in docs/deprecation.md.
"""

from __future__ import annotations

RENAMED = {"CrossingWarning": ("PolicyWarning", "0.3")}
"""A former public name, the name to use, and the version that removes the former one."""


_MEANT = {
    **dict.fromkeys(("to_tensor", "as_tensor", "tensor"), "to_torch"),
    **dict.fromkeys(("as_numpy", "from_torch", "to_np"), "to_numpy"),
    **dict.fromkeys(("from_numpy", "convert", "to"), "to_backend"),
    **dict.fromkeys(("as_array", "array"), "asarray"),
    **dict.fromkeys(("get_namespace", "namespace", "get_array_module"), "array_namespace"),
    **dict.fromkeys(("tree_map", "transform"), "map"),
}
"""The names here for functions that other libraries call differently, for a hint."""


class XBridgeDeprecationWarning(DeprecationWarning):
    """A name or an option is deprecated. The message says what to use instead."""


def find_renamed(namespace: dict[str, object], name: str) -> object:
    """Return the object for a former name of a module, with a warning at the line that used it.

    Raises
    ------
    AttributeError
        The module never had that name.
    """
    module = str(namespace["__name__"])
    if name not in RENAMED:
        public: list[str] = namespace.get("__all__", [])  # type: ignore[assignment] # it is a list of names
        meant = _MEANT.get(name, "") if name.startswith("_") or name in _MEANT else _similar(public, name)
        advice = f"; try {module}.{meant}" if meant in public else ""
        raise AttributeError(f"module {module!r} has no attribute {name!r}{advice}", name=name)
    from warnings import warn  # noqa: PLC0415 -- `import xbridge` does not need it

    instead, removed_in = RENAMED[name]
    message = (
        f"{module}.{name} is deprecated and will be removed in xbridge {removed_in}; use {module}.{instead}"
    )
    warn(message, XBridgeDeprecationWarning, stacklevel=3)
    return namespace[instead]


def _similar(public: list[str], name: str) -> str:
    """Return the public name that is most similar to a mistaken one; "" if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 -- 6 ms, and only an error needs it

    return next(iter(get_close_matches(name, public, 1)), "")
