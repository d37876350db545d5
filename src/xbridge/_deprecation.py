"""The errors for names that do not exist, with those that were meant."""

from __future__ import annotations

_MEANT = {
    **dict.fromkeys(("to_tensor", "as_tensor", "tensor"), "to_torch"),
    **dict.fromkeys(("as_numpy", "from_torch", "to_np", "to_cpu"), "to_numpy"),
    **dict.fromkeys(("from_numpy", "convert", "to", "to_device"), "to_backend"),
    **dict.fromkeys(("as_array", "array"), "asarray"),
    **dict.fromkeys(("get_namespace", "namespace", "get_array_module"), "array_namespace"),
    **dict.fromkeys(("tree_map", "transform"), "map"),
}
"""The names here for functions that other libraries call differently, for a hint."""


_OF_AN_ARRAY = ("asarray", "backend_of", "device_of", "dtype_of", "native_device", "to_list")
"""Functions of one array, which `xbridge.tree.map` calls with each array of a tree."""

_SIMILARITY = 0.65
"""From here on a name is a misspelling. The common start `to_` of many names does not count."""


def missing_name(namespace: dict[str, object], name: str) -> AttributeError:
    """Return the error for a name that a module does not have, with the one that was meant."""
    module = str(namespace["__name__"])
    public: list[str] = namespace.get("__all__", [])  # type: ignore[assignment] # it is a list of names
    meant = "" if name.startswith("_") else _similar(public, name)
    advice = f"; try {module}.{meant}" if meant else ""
    if "map" in public and name in _OF_AN_ARRAY:  # it is that of trees
        advice = f"; try {module}.map(xbridge.{name}, x)"
    if (module, name) == ("xbridge", "testing"):  # whose import registers a backend
        advice = f"; try import {module}.{name}"
    return AttributeError(f"module {module!r} has no attribute {name!r}{advice}", name=name)


def _similar(public: list[str], name: str) -> str:
    """Return the public name that is most similar to a mistaken one; "" if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 -- 6 ms, and only an error needs it

    known = {word: word for word in public} | {word: it for word, it in _MEANT.items() if it in public}
    verb = "to_" * name.startswith("to_")
    rests = [word.removeprefix(verb) for word in known if word.startswith(verb)]
    near = get_close_matches(name.removeprefix(verb), rests, 1, _SIMILARITY)
    return known[verb + near[0]] if near else ""
