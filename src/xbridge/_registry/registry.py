"""The registry of backends, which finds them by name and by the type of an array.

A backend is only an import path until its name or an array of its type is used. The package that a type comes
from makes a backend a candidate, and `owns` of the backend decides: `torch.Size`, a tuple, is no array. The
entry points of installed plugins are read once, when a name or type has no built-in or registered backend.

Each change of the registry invalidates the cached calls in `call_cache.py`.

Foreign code never runs under the lock: imports, `owns`, the attributes of a backend. Such code may import,
and the thread that imports its library may be waiting for this lock. So a result is stored afterwards, if the
registry has not changed meanwhile.
"""

from __future__ import annotations

import sys
from _weakref import ref  # an import of `weakref` would take longer

from xbridge._core.entry_points import entry_point
from xbridge._core.literals import NUMBERS
from xbridge._core.locks import in_child, lock
from xbridge._core.tracing import constant_in_traces, traced_as
from xbridge._registry import call_cache
from xbridge._registry.loading import OTHER_NAMES, Module, find_plugins, load, unknown_backend_error
from xbridge.backends import HOST, INDEX, Entry
from xbridge.errors import MissingLibraryError, OptionError, UnknownBackendError, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from xbridge._core.protocol import Backend

by_type: dict[type, Backend] = {}
"""The backends of array types that are defined in the library itself. These types live as long as it."""

_by_subtype: dict[ref[type], Backend | None] = {}
"""The backends of types from elsewhere, or None, by weak references, because such types may be collected."""


class _Loaded:
    """The backends loaded so far, as attributes, which a compiler can follow. None is removed."""


_current: set[str] = set()
"""The names whose backend in `_Loaded` is the one that is registered now."""

observers: tuple[Any, ...] = ()
"""Who is notified of conversions. While there is anyone, all are planned, and no call is cached."""

_entries: dict[str, Entry] = dict(INDEX)  # replaced as a whole, so that it can be read without the lock
_plugins: dict[str, tuple[Entry, ...]] | None = None
_failed: set[Entry] = set()
"""Entries that failed to load. `is_available` does not try them again."""
_lock = lock()


def get(name: str | ModuleType) -> Backend:
    """Return the backend of a name or of a library's module; import it if necessary."""
    backend: Backend = getattr(_Loaded, _ensure_loaded(name))
    return backend


def _reduce_to_name(backend: Backend) -> tuple[Callable[[str], Backend], tuple[str]]:
    """Pickle the name alone: another process takes the backend that is registered there."""
    return get, (backend.name,)


def _find_backend(cls: type) -> Backend | None:
    name = _backend_name_of_type(cls)
    return get(name) if name else None


@traced_as(_find_backend)
def backend_for(cls: type) -> Backend | None:
    """Return the backend that owns instances of the class; None if there is none."""
    backend = by_type.get(cls)  # not by an exception: callers ask about objects that are no arrays, in loops
    if backend is not None:
        return backend
    try:
        return _by_subtype[ref(cls)]
    except KeyError:
        return _find_backend(cls)


def backends_for_object(thing: object) -> list[Backend]:
    """Return the backends that may know an object which is not an array, such as a dtype, by its package."""
    return [get(name) for root in _roots(thing) for name in _candidates_of_root(root)]


@constant_in_traces
def _roots(thing: object) -> tuple[str, ...]:
    modules = (type(thing).__module__, getattr(thing, "__module__", None))
    return tuple(dict.fromkeys(str(module).partition(".")[0] for module in modules))


@entry_point
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
        The name that users type.
    module : module or str
        A module with the required names of `xbridge.protocol.Backend` and any others, or its import path.
        A path is imported when the backend is first needed.
    roots : tuple of str, optional
        Top-level packages that the array types come from. Default: `name`.
    replace : bool
        True to replace another module of that name.

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
                "replace=True",
            )
        _current.discard(name)
        by_type.clear()
        _by_subtype.clear()
        _entries = {**_entries, name: entry}
    call_cache.invalidate(_cacheable_backends)


@entry_point
def known_backends() -> tuple[str, ...]:
    """Return the names of all known backends, installed or not.

    Returns
    -------
    tuple of str
        Built-in backends first, then registered ones, then entry points.

    Examples
    --------
    >>> known_backends()[:2]
    ('numpy', 'torch')
    """
    return tuple(dict.fromkeys([*_entries, *_read_plugins()]))


@entry_point
def is_available(name: str | ModuleType) -> bool:
    """Return True if the backend can be imported and used here. The answer is cached after the import.

    Parameters
    ----------
    name : str or module
        The name of a backend, or the module of a library.

    Returns
    -------
    bool
        False if the name is not registered, or the library cannot be imported, or is still being imported.

    Raises
    ------
    UnknownBackendError
        The name is a usual one of a library that has another one here, such as ``"pytorch"``.

    Examples
    --------
    >>> is_available("numpy"), is_available("nolib")
    (True, False)
    """
    if isinstance(name, Module):
        name = _backend_name_of_module(name)
    if not isinstance(name, str):
        return False
    claims = entries_for(name)
    if not claims and name in OTHER_NAMES:
        raise unknown_backend_error(name, known_backends())
    if len(claims) != 1 or claims[0] in _failed:
        return False
    try:
        _load(name)
    except (MissingLibraryError, UnknownBackendError, OptionError):
        if sys.modules.keys().isdisjoint(claims[0].roots):  # else the library may be importing itself now
            _failed.update(claims)
        return False
    return True


def imported() -> list[Backend]:
    """Return the backends of the libraries that this process has imported."""
    names = [
        name
        for name in known_backends()
        if any(root in sys.modules for entry in entries_for(name) for root in entry.roots)
    ]
    return [get(name) for name in names if is_available(name)]


def loaded() -> list[Backend]:
    """Return the backends that have been used so far, in that order. This imports nothing."""
    with _lock:
        return [backend for name, backend in vars(_Loaded).items() if name in _current]


def add_observer(observer: object) -> None:
    """Notify an observer of conversions from now on. An observer that is added twice is notified twice."""
    global observers  # noqa: PLW0603 -- changed under the lock
    with _lock:
        observers = (*observers, observer)
    call_cache.invalidate(_cacheable_backends)


def remove_observer(observer: object) -> None:
    """Undo one call of `add_observer`."""
    global observers  # noqa: PLW0603 -- changed under the lock
    with _lock:
        last = len(observers) - 1 - observers[::-1].index(observer)
        observers = observers[:last] + observers[last + 1 :]
    call_cache.invalidate(_cacheable_backends)


@constant_in_traces
def _backend_name_of_type(cls: type) -> str:
    """Find the backend that owns instances of a class, store it, and return its name; "" if there is none."""
    entries = _entries
    roots = list(dict.fromkeys(str(c.__module__).partition(".")[0] for c in cls.__mro__))
    candidates = ((root, _load(name)) for root in roots for name in _candidates_of_root(root))
    owners = ((root, candidate) for root, candidate in candidates if candidate.owns(cls))
    root, backend = next(owners, ("", None))
    with _lock:
        if entries is _entries:
            if backend and root == roots[0]:
                by_type[cls] = backend
            else:
                _by_subtype[ref(cls, lambda gone: _by_subtype.pop(gone, None))] = backend
    return backend.name if backend else ""


@constant_in_traces
def _ensure_loaded(name: str | ModuleType) -> str:
    """Load the backend of a name or module if necessary, and return its name.

    The name and not the backend, because a compiler keeps the result of a call at trace time in the program.
    """
    if isinstance(name, Module):
        name = _backend_name_of_module(name) or name
    if not isinstance(name, str):
        raise unknown_backend_error(name, known_backends())
    _load(name)
    return name


def is_root(package: str) -> bool:
    """Return True if a package may have array types of a backend."""
    return bool(_candidates_of_root(package))


def _backend_name_of_module(module: ModuleType) -> str:
    """Return the name of the backend for the library that a module belongs to; "" if there is none.

    This is the library whose package contains the module. A module of another package, such as
    `array_api_compat.torch`, stands for the library in its name if it also has that library's array type.
    """
    root, *parts = str(getattr(module, "__name__", "")).split(".")
    names = _candidates_of_root(root)
    if names:
        return names[0]
    held = vars(module)
    for name in (name for part in parts for name in _candidates_of_root(part)):
        if is_available(name) and any(held.get(cls.__name__) is cls for cls in get(name).array_types):
            return name
    return ""


def _candidates_of_root(root: str) -> list[str]:
    """Return the names of backends whose array types may come from a package; plugins only if no other."""
    if root in sys.stdlib_module_names:
        return []
    names = [name for name, entry in _entries.items() if root in entry.roots]
    return names or [name for name in _read_plugins() if name == root]


def _load(name: str) -> Backend:
    """Return the backend that is registered by a name when this call returns; load it if necessary."""
    while name not in _current:
        entry = _find_entry(name)
        module = load(name, entry)
        import copyreg  # noqa: PLC0415 -- NumPy imports it, and comes with the first backend

        from xbridge._core.protocol import Backend  # noqa: PLC0415 -- as above

        backend = Backend(module, load(HOST, INDEX[HOST]))
        if name != HOST:
            _load(HOST)
        copyreg.pickle(Backend, _reduce_to_name)
        with _lock:
            if name not in _current and entry is _entries.get(name, entry):
                setattr(_Loaded, name, backend)
                _current.add(name)
                _failed.discard(entry)
                call_cache.direct.setdefault(name, {})
        call_cache.invalidate(_cacheable_backends)
    loaded_backend: Backend = getattr(_Loaded, name)
    return loaded_backend


def _cacheable_backends() -> list[Backend]:
    """Return the backends between which calls may be cached: none while there are observers."""
    return [] if observers else loaded()


def _rebuild_in_child() -> None:
    """Rebuild the tables in a child process, because a thread of the parent may have been changing them."""
    with _lock:
        by_type.clear()
        _by_subtype.clear()
    call_cache.invalidate(_cacheable_backends)


in_child(_rebuild_in_child)


def is_number(x: object) -> bool:
    """Return True if `x` is a Python number and not an array scalar, some of which are Python numbers too."""
    return isinstance(x, NUMBERS) and backend_for(type(x)) is None


def are_arrays(cls: type) -> bool:
    """Return True if a backend owns instances of a class. `numpy.str_`, a string too, does not count."""
    return backend_for(cls) is not None and not issubclass(cls, (str, bytes))


def entries_for(name: str) -> tuple[Entry, ...]:
    """Return the entries for a name: at most one, unless several packages announce it."""
    entry = _entries.get(name)
    return _read_plugins().get(name, ()) if entry is None else (entry,)


def _find_entry(name: str) -> Entry:
    claims = entries_for(name)
    if not claims:
        raise unknown_backend_error(name, known_backends())
    entry, *others = claims
    if others:
        raise OptionError.build(
            f"use backend {name!r}",
            f"{' and '.join(map(str, claims))} claim the same name",
            " or ".join(f"pip uninstall {claim.package}" for claim in claims),
        )
    return entry


def _read_plugins() -> dict[str, tuple[Entry, ...]]:
    """Return the entries of plugins, read once. A built-in or registered name takes precedence."""
    global _plugins  # noqa: PLW0603 -- filled once, by the first thread that is done
    if _plugins is None:
        plugins = find_plugins()
        with _lock:
            _plugins = plugins if _plugins is None else _plugins
    return _plugins
