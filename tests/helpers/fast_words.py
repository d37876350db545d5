"""Backends of tests that write the words of the fast path one by one, such as `fast_to_numpy`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from xbridge.protocol import Fast

_PLAIN = ("stack_many", "plan_state", "plan_key", "outside_modes")
WORDS = {name if name in _PLAIN else f"fast_{name}": name for name in (field.name for field in fields(Fast))}


def with_fast(words: dict[str, Any]) -> dict[str, Any]:
    """The names of a backend, those of the fast path in the object `fast`."""
    fast = {WORDS[word]: value for word, value in words.items() if word in WORDS}
    if not fast:
        return words
    others = {word: value for word, value in words.items() if word not in WORDS}
    return {**others, "fast": replace(words.get("fast", Fast()), **fast)}
