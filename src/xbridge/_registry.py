"""Name -> backend, type -> backend: the only tables, and the only lock.

A backend is a string until somebody needs it: its name, or an array of its type. A package root only
nominates a backend for a type (`torch.Size` is a tuple); the backend's own `owns` decides. Outsiders are
read from the entry-point group `xbridge.backends` once, on the first name or type that nobody claims.

The hot path reads one table, `hot`: backend name -> exact type -> one function that converts or returns
None (and `kept`, for an array that stays). It is read without the lock, filled and emptied under it.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock

from xbridge._loading import check, load, plugins, unknown
from xbridge._tracing import constant
from xbridge.backends import HOST, INDEX, Entry
from xbridge.errors import MissingLibraryError, OptionError, UnknownBackendError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from xbridge._protocol import Array, Backend

by_type: dict[type, Backend] = {}
hot: dict[str, dict[type, Callable[[Array], Array | None]]] = {HOST: {}}
kept: dict[type, Callable[[Array], Array]] = {}


class _Loaded:
    """Every backend loaded so far, as an attribute: a compiler can follow that. None ever leaves."""


_current: set[str] = set()
"""The names whose backend in `_Loaded` is the one that is registered now."""

watchers = 0  # of conversions: while there are any, all are planned, and the tables above stay empty

_entries: dict[str, Entry] = dict(INDEX)
_plugins: dict[str, tuple[Entry, ...]] | None = None
_available: dict[str, bool] = {}
_lock = RLock()


def _renew_lock() -> None:
    """A child process has no use for a lock that another thread of its parent may hold."""
    global _lock  # noqa: PLW0603 -- the one lock
    _lock = RLock()


# Where there is no fork, there is nothing to prepare for.
getattr(os, "register_at_fork", dict)(after_in_child=_renew_lock)


def get(name: str) -> Backend:
    """The backend of that name, imported if need be."""
    backend: Backend = getattr(_Loaded, _fetch(name))
    return backend


def backend_for(cls: type) -> Backend | None:
    """The backend that owns instances of the class; None if nobody does."""
    try:
        return by_type[cls]
    except KeyError:
        name = _find(cls)
        return get(name) if name else None


def kin(thing: object) -> list[Backend]:
    """The backends from whose package a thing that is no array comes: a dtype, a device, a class."""
    return [get(name) for root in _roots(thing) for name in _nominated(root)]


@constant
def _roots(thing: object) -> tuple[str, ...]:
    """The packages that a thing and its class come from."""
    modules = (type(thing).__module__, getattr(thing, "__module__", None))
    return tuple(dict.fromkeys(str(module).partition(".")[0] for module in modules))


def register_backend(
    name: str,
    module: ModuleType | str,
    *,
    roots: tuple[str, ...] | None = None,
    replace: bool = False,
) -> None:
    """Add a backend.

    Parameters
    ----------
    name : str
        What users type.
    module : module or str
        A module with the verbs of `xbridge.protocol.Backend`, or its import path, which is imported
        when it is first needed.
    roots : tuple of str, optional
        Top-level packages that its array types come from; `name` if not given.
    replace : bool
        Whether it may take a name that another module holds.

    Raises
    ------
    OptionError
        The name belongs to another module and `replace` is False.

    Examples
    --------
    >>> register_backend("mylib", "mylib_xbridge")
    >>> "mylib" in known_backends(), is_available("mylib")
    (True, False)
    """
    if not isinstance(name, str):
        raise OptionError.because(f"register a backend {name!r}", "a name is a string", repr(str(name)))
    packages = (name,) if roots is None else (roots,) if isinstance(roots, str) else tuple(roots)
    entry = Entry(module, packages, f"pip install {name}")
    with _lock:
        held = _entries.get(name)
        if held is not None and not replace:
            if held.module == module and (roots is None or held.roots == packages):
                return
            raise OptionError.because(
                f"register a backend {name!r}",
                f"that name belongs to {held}",
                "replace=True, or another name",
            )
        _entries[name] = entry
        by_type.clear()
        _current.discard(name)
        _available.pop(name, None)
        _warm()


def known_backends() -> tuple[str, ...]:
    """The names that can be asked for, installed or not.

    Returns
    -------
    tuple of str
        Built-in backends first, then registered ones, then entry points.

    Examples
    --------
    >>> known_backends()[:2]
    ('numpy', 'torch')
    """
    with _lock:
        return tuple(dict.fromkeys([*_entries, *_scan()]))


def is_available(name: str) -> bool:
    """Whether the backend can be imported and used here. The answer is remembered.

    Parameters
    ----------
    name : str
        Any name.

    Returns
    -------
    bool
        False if nobody has registered the name, or its library cannot be imported.

    Examples
    --------
    >>> is_available("numpy"), is_available("nolib")
    (True, False)
    """
    if not isinstance(name, str):
        return False
    with _lock:
        if name not in _available:
            try:
                _load(name)
            except (MissingLibraryError, UnknownBackendError, OptionError):
                _available[name] = False
            else:
                _available[name] = True
        return _available[name]


def watch(change: int) -> None:
    """One watcher more, or one less: the first empties the hot table, the last fills it again."""
    global watchers  # noqa: PLW0603 -- changed under the lock
    with _lock:
        watchers += change
        _warm()


@constant
def _find(cls: type) -> str:
    """Fill the tables for a class, and name its backend; "" if nobody owns it."""
    with _lock:
        roots = dict.fromkeys(str(c.__module__).partition(".")[0] for c in cls.__mro__)
        for root in roots:
            for name in _nominated(root):
                backend = _load(name)
                if backend.owns(cls):
                    by_type[cls] = backend
                    return name
        return ""


@constant
def _fetch(name: str) -> str:
    """Make sure that a backend is loaded."""
    if not isinstance(name, str):
        raise unknown(name, known_backends())
    if name not in _current:
        with _lock:
            _load(name)
    return name


def _nominated(root: str) -> list[str]:
    """Names of the backends whose arrays may come from a package; asks plugins only if nobody else."""
    if root in sys.stdlib_module_names:
        return []
    names = [name for name, entry in tuple(_entries.items()) if root in entry.roots]
    return names or [name for name in _scan() if name == root]


def _load(name: str) -> Backend:
    if name in _current:
        return getattr(_Loaded, name)  # type: ignore[no-any-return] # set below
    entry = _entry(name)
    module = entry.module
    loaded: Any = load(name, module, entry) if isinstance(module, str) else module
    backend: Backend = loaded
    check(name, backend, entry)
    setattr(_Loaded, name, backend)
    _current.add(name)
    hot.setdefault(name, {})
    _load(HOST)
    _warm()
    return backend


def _warm() -> None:
    """Lay out the hot table anew for the backends that are loaded."""
    for table in (kept, *hot.values()):
        table.clear()
    rooms = [] if watchers else [_load(name) for name in sorted(_current)]
    for target in rooms:
        kept.update(dict.fromkeys(target.plain, _itself))
        for source in rooms:
            direct = _direct(source, target)
            hot.setdefault(target.name, {}).update(dict.fromkeys(source.plain, direct))


def _itself(x: Array) -> Array:
    return x


def _direct(source: Backend, target: Backend) -> Callable[[Array], Array | None]:
    """One call from a plain array of one backend to the other; it answers None when in doubt."""
    if source is target:
        return _itself
    if target.name == HOST:
        return source.peek
    if source.name == HOST:
        return target.adopt

    # Between two that never change memory is shared, and `adopt` copies what it is shown.
    shares = source.immutable and target.immutable

    def meet(x: Array) -> Array | None:
        host = None if shares else source.peek(x)
        return None if host is None else target.adopt(host)

    return meet


def claims(name: str) -> tuple[Entry, ...]:
    """Where a backend of that name may be found: in one place, unless packages disagree."""
    with _lock:
        return (_entries[name],) if name in _entries else _scan().get(name, ())


def _entry(name: str) -> Entry:
    found = claims(name)
    if not found:
        raise unknown(name, known_backends())
    entry, *others = found
    if others:
        raise OptionError.because(
            f"use backend {name!r}",
            f"{' and '.join(map(str, found))} claim the same name",
            " or ".join(f"pip uninstall {claim.package}" for claim in found),
        )
    return entry


def _scan() -> dict[str, tuple[Entry, ...]]:
    """Entry points, read once. One that claims a name that is built in or registered is passed over."""
    global _plugins  # noqa: PLW0603 -- filled once, under the lock
    if _plugins is None:
        _plugins = plugins()
    return _plugins
