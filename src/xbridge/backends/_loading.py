"""Turn a name and an entry into a backend module, or say why that cannot be."""

from __future__ import annotations

import sys
from importlib import import_module

from xbridge.backends import Entry
from xbridge.errors import (
    FOREIGN_ERRORS,
    Chained,
    MissingLibraryError,
    OptionError,
    UnknownBackendError,
    shown,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.metadata import Distribution, EntryPoint
    from typing import Any

    from xbridge._core.protocol import Backend


def load(name: str, path: str, entry: Entry) -> Any:
    """Import a module, again if it is not there because another thread was importing the library."""
    with Chained(lambda error: _failure(name, path, entry, error)):
        try:
            return import_module(path)
        except FOREIGN_ERRORS:
            if sys.modules.keys().isdisjoint(entry.roots):
                raise
        for module in under_way(entry):
            import_module(module)  # waits for that thread, which cannot be waiting for this one any more
        return import_module(path)


def under_way(entry: Entry) -> list[str]:
    """The modules of the library and of the backend that are being imported now, by whatever thread."""
    path = entry.module if isinstance(entry.module, str) else entry.module.__name__
    roots = {*entry.roots, path.partition(".")[0]}
    known = sys.modules.copy().items()
    return [name for name, module in known if name.partition(".")[0] in roots and _is_initializing(module)]


def _is_initializing(module: object) -> bool:
    """Whether the body of a module is still running, as the import system itself asks."""
    return getattr(getattr(module, "__spec__", None), "_initializing", False) is True


def _failure(name: str, path: str, entry: Entry, error: Exception) -> MissingLibraryError:
    """What keeps a backend from being imported: its library is missing, it is itself, or it is broken."""
    begun = under_way(entry)
    absent = str(error.name) if isinstance(error, ModuleNotFoundError) else ""
    if absent and entry.package and f"{path}.".startswith(f"{absent}."):
        reason = f"the package {entry.package} announces a module {path}, and there is none"
        hint = f"pip install --upgrade {entry.package}"
    elif absent.partition(".")[0] in {*entry.roots, path.partition(".")[0]}:
        reason, hint = f"{absent.partition('.')[0]} is not installed", entry.install
    elif begun:
        reason, hint = f"{begun[0]} is still being imported", f"the same after import {begun[0]}"
    else:
        reason, hint = f"importing {entry} failed with {error!r}", f'python -c "import {path}"'
    return MissingLibraryError.build(f"use backend {name!r}", reason, hint)


def check(name: str, module: Backend, entry: Entry) -> None:
    """Hold a module to the protocol when it is loaded: a misspelt verb is a missing one."""
    reason = next(_faults(name, module), "")
    if reason and _is_initializing(module):
        raise MissingLibraryError.build(
            f"use backend {name!r}", f"{entry} is still being imported", f"the same after import {entry}"
        )
    if reason:
        raise OptionError.build(
            f"use backend {name!r}",
            f"its module {entry} {reason}",
            "every fact and verb of xbridge.protocol.Backend in it",
        )


def _faults(name: str, module: Backend) -> Iterator[str]:
    """What keeps a module from being a backend. Of its facts the tables are made that all backends share."""
    from xbridge._core.optional import OPTIONAL  # noqa: PLC0415 -- read on a miss only
    from xbridge._core.protocol import FACTS, VERBS  # noqa: PLC0415 -- read on a miss only

    missing = [word for word in (*FACTS, *VERBS) if not hasattr(module, word)]
    if missing:
        yield f"has no {', '.join(missing)}"
    for word, kind in FACTS.items():
        if not isinstance(getattr(module, word), kind):
            yield f"says {word} = {getattr(module, word)!r}, which is no {kind.__name__}"
    for word in (*VERBS, *(word for word in OPTIONAL if hasattr(module, word))):
        if not callable(getattr(module, word)):
            yield f"says {word} = {getattr(module, word)!r}, which is no function"
    if not all(isinstance(cls, type) for cls in (*module.plain, *module.scalars)):
        yield "names something in plain or scalars that is no type"
    if module.name != name:
        yield f"is named {module.name!r}"


def plugins() -> dict[str, tuple[Entry, ...]]:
    """What installed packages announce, by name. What they announce is imported, and found wrong, later."""
    from importlib.metadata import distributions  # noqa: PLC0415 -- 11 ms, and only a miss needs it

    claims: dict[str, tuple[Entry, ...]] = {}
    for package in distributions():
        for point in _announced(package):
            entry = Entry(point.value, (point.name,), f"pip install {package.name}", package.name)
            held = claims.get(point.name, ())
            if package.name not in [claim.package for claim in held]:  # behind it on the path, and hidden
                claims[point.name] = (*held, entry)
    return claims


def _announced(package: Distribution) -> list[EntryPoint]:
    """The backends that a package announces: none, if nobody can read what it does."""
    try:
        return [point for point in package.entry_points if point.group == "xbridge.backends"]
    except FOREIGN_ERRORS:
        return []


def unknown(name: object, names: tuple[str, ...]) -> UnknownBackendError:
    from difflib import get_close_matches  # noqa: PLC0415 -- 6 ms, and only an error needs it

    if isinstance(name, str):
        asked, near = f"find backend {shown(name)}", get_close_matches(name.casefold(), names, n=1)
    else:
        called = getattr(name, "__name__", None) if isinstance(name, type(sys)) else None
        asked, near = f"find a backend by {shown(name) if called is None else f'the module {called}'}", []
    known = f"the known names are {', '.join(names)}"
    return UnknownBackendError.build(asked, known, f"{near[0]!r}" if near else "one of these")
