"""Deprecated names, which work as before and warn at the line that uses them.

The policy is in docs/deprecation.md.
"""

from __future__ import annotations

RENAMED = {"CrossingWarning": ("PolicyWarning", "0.3")}
"""A former public name, the name to use, and the version that removes the former one."""


class XBridgeDeprecationWarning(DeprecationWarning):
    """A name or an option is deprecated, and the message has the one to use."""


def find_renamed(namespace: dict[str, object], name: str) -> object:
    """Return what a module has instead of a former name, with a warning at the caller of its `__getattr__`.

    Raises
    ------
    AttributeError
        The module never had that name.
    """
    module = str(namespace["__name__"])
    if name not in RENAMED:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    from warnings import warn  # noqa: PLC0415 -- `import xbridge` does not need it

    instead, removed_in = RENAMED[name]
    message = (
        f"{module}.{name} is deprecated and will be removed in xbridge {removed_in}; use {module}.{instead}"
    )
    warn(message, XBridgeDeprecationWarning, stacklevel=3)
    return namespace[instead]
