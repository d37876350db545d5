"""Name -> backend, type -> backend: the only tables.

A backend is a string until somebody needs it: its name, or an array of its type. A package root only
nominates a backend for a type (`torch.Size` is a tuple); the backend's own `owns` decides. Outsiders are
read from the entry-point group `xbridge.backends` once, on the first name or type that nobody claims.

The fast path reads one table, `fast_converters`: backend name -> exact type -> one function that converts or
returns None (and `identity_types`, for an array that stays). It is read without the lock, filled and emptied
under it.

Code of others never runs under the lock: imports, `owns`, the attributes of a backend. It may import, and the
thread that imports its library may be waiting for this lock. So what comes of it is put in afterwards, if
it still holds.
"""

from __future__ import annotations

import sys

from xbridge._core.dynamo import constant
from xbridge._core.literals import NUMBERS
from xbridge._core.locks import in_child, lock
from xbridge.backends import HOST, INDEX, Entry
from xbridge.backends._loading import complete, load, plugins, under_way, unknown
from xbridge.errors import MissingLibraryError, OptionError, UnknownBackendError, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from xbridge._core.protocol import Array, Backend

by_type: dict[type, Backend] = {}
fast_converters: dict[str, dict[type, Callable[[Array], Array | None]]] = {HOST: {}}
identity_types: dict[type, Callable[[Array], Array]] = {}


class _Loaded:
    """Every backend loaded so far, as an attribute: a compiler can follow that. None ever leaves."""


_current: set[str] = set()
"""The names whose backend in `_Loaded` is the one that is registered now."""

_Module: type[ModuleType] = type(sys)  # to import `types` for it would take longer

observers = 0  # of conversions: while there are any, all are planned, and the tables above stay empty

_entries: dict[str, Entry] = dict(INDEX)  # replaced as a whole, so that it can be read without the lock
_plugins: dict[str, tuple[Entry, ...]] | None = None
_failed: set[Entry] = set()
"""What could not be loaded, and will not be tried again to say whether it is available."""
_lock = lock()


def get(name: str | ModuleType) -> Backend:
    """The backend of that name, or of that module's library, imported if need be."""
    backend: Backend = getattr(_Loaded, _fetch(name))
    return backend


def backend_for(cls: type) -> Backend | None:
    """The backend that owns instances of the class; None if nobody does."""
    try:
        return by_type[cls]
    except KeyError:
        name = _find(cls)
        return get(name) if name else None


def backends_for_object(thing: object) -> list[Backend]:
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
        A module with the required names of `xbridge.protocol.Backend` and any others, or its import path,
        which is imported when it is first needed.
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
        raise OptionError.build(f"register a backend {shown(name)}", "a name is a string", "'mylib'")
    packages = (name,) if roots is None else (roots,) if isinstance(roots, str) else tuple(roots)
    entry = Entry(module, packages, f"pip install {name}")
    global _entries  # noqa: PLW0603 -- replaced under the lock
    with _lock:
        held = _entries.get(name)
        if held is not None and not replace:
            if held.module == module and (roots is None or held.roots == packages):
                return
            raise OptionError.build(
                f"register a backend {name!r}",
                f"that name belongs to {held}",
                "replace=True, or another name",
            )
        _current.discard(name)
        _empty()
        by_type.clear()
        _entries = {**_entries, name: entry}
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
    return tuple(dict.fromkeys([*_entries, *_scan()]))


def is_available(name: str | ModuleType) -> bool:
    """Whether the backend can be imported and used here. The answer is remembered, once the import is over.

    Parameters
    ----------
    name : str or module
        Any name, or a library's module.

    Returns
    -------
    bool
        False if the name is not registered, or its library cannot be imported, or is still being imported
        by this thread.

    Examples
    --------
    >>> is_available("numpy"), is_available("nolib")
    (True, False)
    """
    if isinstance(name, _Module):
        name = _named(name)
    if not isinstance(name, str):
        return False
    found = claims(name)
    if len(found) != 1 or found[0] in _failed:
        return False
    try:
        _load(name)
    except (MissingLibraryError, UnknownBackendError, OptionError):
        if not under_way(found[0]):
            _failed.update(found)
        return False
    return True


def count_observers(change: int) -> None:
    """One watcher more, or one less: the first empties the hot table, the last fills it again."""
    global observers  # noqa: PLW0603 -- changed under the lock
    with _lock:
        observers += change
        _empty()
    _warm()


@constant
def _find(cls: type) -> str:
    """Fill the tables for a class, and name its backend; "" if nobody owns it."""
    entries = _entries
    roots = dict.fromkeys(str(c.__module__).partition(".")[0] for c in cls.__mro__)
    for root in roots:
        for name in _nominated(root):
            backend = _load(name)
            if backend.owns(cls):
                with _lock:
                    if entries is _entries:
                        by_type[cls] = backend
                return name
    return ""


@constant
def _fetch(name: str | ModuleType) -> str:
    """Make sure that a backend is loaded, and name it."""
    if isinstance(name, _Module):
        name = _named(name) or name
    if not isinstance(name, str):
        raise unknown(name, known_backends())
    _load(name)
    return name


def is_root(package: str) -> bool:
    """Whether a backend's arrays may come from a package."""
    return bool(_nominated(package))


def _named(module: ModuleType) -> str:
    """The backend whose library a module belongs to; "" if there is none.

    That is the library whose package it is in. A module of another package, such as array-api-compat, stands
    for a library that it is named after, if it has the library's array type.
    """
    root, *parts = str(getattr(module, "__name__", "")).split(".")
    names = _nominated(root)
    if names:
        return names[0]
    held = set(map(id, vars(module).values()))
    for name in (name for part in parts for name in _nominated(part)):
        if is_available(name) and not held.isdisjoint(map(id, get(name).array_types)):
            return name
    return ""


def _nominated(root: str) -> list[str]:
    """Names of the backends whose arrays may come from a package; asks plugins only if nobody else."""
    if root in sys.stdlib_module_names:
        return []
    names = [name for name, entry in _entries.items() if root in entry.roots]
    return names or [name for name in _scan() if name == root]


def _load(name: str) -> Backend:
    """The backend of that name that is registered when this returns; what is registered meanwhile wins."""
    while name not in _current:
        entry = _entry(name)
        module = entry.module
        backend = complete(load(name, module, entry) if isinstance(module, str) else module, name, entry)
        if name != HOST:
            _load(HOST)
        with _lock:
            if name not in _current and entry is _entries.get(name, entry):
                setattr(_Loaded, name, backend)
                _current.add(name)
                _failed.discard(entry)
                fast_converters.setdefault(name, {})
                _empty()
        _warm()
    found: Backend = getattr(_Loaded, name)
    return found


def _empty() -> None:
    """Empty the hot table, under the lock."""
    for table in (identity_types, *fast_converters.values()):
        table.clear()


def _warm() -> None:
    """Lay out the hot table, and put it in if it still holds. Whoever has changed that lays it out again."""
    backends = _connected()
    own: dict[type, Callable[[Array], Array]] = {}
    tables: dict[str, dict[type, Callable[[Array], Array | None]]] = {}
    for target in backends:
        own.update(dict.fromkeys(target.fast_types, _itself))
        table = tables.setdefault(target.name, {})
        for source in backends:
            table.update(dict.fromkeys(source.fast_types, _direct(source, target)))
    with _lock:
        if backends == _connected():
            identity_types.update(own)
            for name, table in tables.items():
                fast_converters[name].update(table)


def _connected() -> list[Backend]:
    """The backends between which the fast path leads now."""
    with _lock:
        return [] if observers else [getattr(_Loaded, name) for name in sorted(_current)]


def _renew() -> None:
    """Derive the tables anew in a child process: a thread that it has not got may have been changing them."""
    with _lock:
        _empty()
        by_type.clear()
    _warm()


in_child(_renew)


def _itself(x: Array) -> Array:
    return x


def _direct(source: Backend, target: Backend) -> Callable[[Array], Array | None]:
    """One call from a plain array of one backend to the other; it answers None when in doubt."""
    if source is target:
        return _itself
    if target.name == HOST:
        return source.fast_to_numpy
    if source.name == HOST:
        return target.fast_from_numpy

    # Between two that never change memory is shared, and `fast_from_numpy` copies what it is shown.
    shares = source.assumes_immutable and target.assumes_immutable

    def meet(x: Array) -> Array | None:
        host = None if shares else source.fast_to_numpy(x)
        return None if host is None else target.fast_from_numpy(host)

    return meet


def is_number(x: object) -> bool:
    """Return True if `x` is a Python number and not an array scalar that is one as well."""
    return isinstance(x, NUMBERS) and backend_for(type(x)) is None


def are_arrays(cls: type) -> bool:
    """Return True if a backend owns instances of a class. NumPy scalars that are strings do not count."""
    return backend_for(cls) is not None and not issubclass(cls, (str, bytes))


def claims(name: str) -> tuple[Entry, ...]:
    """Where a backend of that name may be found: in one place, unless packages disagree."""
    entry = _entries.get(name)
    return _scan().get(name, ()) if entry is None else (entry,)


def _entry(name: str) -> Entry:
    found = claims(name)
    if not found:
        raise unknown(name, known_backends())
    entry, *others = found
    if others:
        raise OptionError.build(
            f"use backend {name!r}",
            f"{' and '.join(map(str, found))} claim the same name",
            " or ".join(f"pip uninstall {claim.package}" for claim in found),
        )
    return entry


def _scan() -> dict[str, tuple[Entry, ...]]:
    """Entry points, read once. One that claims a name that is built in or registered is passed over."""
    global _plugins  # noqa: PLW0603 -- filled once, by the first thread that is done
    if _plugins is None:
        found = plugins()
        with _lock:
            _plugins = found if _plugins is None else _plugins
    return _plugins
