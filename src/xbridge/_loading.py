"""Turn a name and an entry into a backend module, or say why that cannot be."""

from __future__ import annotations

from importlib import import_module

from xbridge.backends import Entry
from xbridge.errors import FOREIGN_ERRORS, MissingLibraryError, OptionError, UnknownBackendError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from xbridge._protocol import Backend


def load(name: str, path: str, entry: Entry) -> Any:
    try:
        return import_module(path)
    except FOREIGN_ERRORS as error:
        absent = str(getattr(error, "name", "")).partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and absent in {
            *entry.roots,
            path.partition(".")[0],
        }:
            why, do = f"{absent} is not installed", entry.install
        else:
            why, do = f"importing {path} failed with {error!r}", f'python -c "import {path}"'
        raise MissingLibraryError.because(f"use backend {name!r}", why, do) from error


def check(name: str, module: Backend) -> None:
    """A misspelt verb is a missing one: say so when the backend is loaded, not when it is needed."""
    from xbridge._protocol import FACTS, VERBS  # noqa: PLC0415 -- read on a miss only

    missing = [word for word in (*FACTS, *VERBS) if not hasattr(module, word)]
    if missing or module.name != name:
        why = f"its module has no {', '.join(missing)}" if missing else f"its module is named {module.name!r}"
        raise OptionError.because(
            f"use backend {name!r}", why, "every fact and verb of xbridge._protocol.Backend in it"
        )


def plugins() -> dict[str, tuple[Entry, ...]]:
    """What installed packages offer, by name."""
    from importlib.metadata import entry_points  # noqa: PLC0415 -- 11 ms, and only a miss needs it

    claims: dict[str, tuple[Entry, ...]] = {}
    for point in entry_points(group="xbridge.backends"):
        package = point.dist.name if point.dist else point.module
        entry = Entry(point.module, (point.name,), f"pip install {package}")
        claims[point.name] = (*claims.get(point.name, ()), entry)
    return claims


def unknown(name: object, names: tuple[str, ...]) -> UnknownBackendError:
    from difflib import get_close_matches  # noqa: PLC0415 -- 6 ms, and only an error needs it

    near = get_close_matches(str(name), names, n=1) or names[:1]
    return UnknownBackendError.because(
        f"find backend {name!r}", f"the known names are {', '.join(names)}", f"{near[0]!r}"
    )


def path_of(module: ModuleType | str) -> str:
    return module if isinstance(module, str) else module.__name__
