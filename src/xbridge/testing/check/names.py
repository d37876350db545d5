"""Words in the names of functions, which tell what a function does.

A part of a word tells nothing: `weighted` has nothing to do with `eig`, nor `discount` with `count`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import re


def has_word(name: str, pattern: re.Pattern[str]) -> bool:
    """Return True if a whole word of a name matches."""
    return any(map(pattern.fullmatch, _words(name)))


def begins_with(name: str, pattern: re.Pattern[str]) -> bool:
    """Return True if the first word of a name matches."""
    return any(map(pattern.fullmatch, _words(name)[:1]))


def ends_with(name: str, pattern: re.Pattern[str]) -> bool:
    """Return True if the last word of a name matches."""
    return any(map(pattern.fullmatch, _words(name)[-1:]))


def _words(name: str) -> list[str]:
    return name.casefold().strip("_").split("_")
