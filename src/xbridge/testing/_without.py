"""Properties of arrays that are drawn only on request.

A numeric test that fails because torch restricts a tensor of inference mode, or one that requires grad, says
nothing about the tested code. So both are drawn only if the test asks for them. A mark and the configuration
file add more.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from typing import TYPE_CHECKING

from xbridge.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REQUIRES_GRAD = "requires_grad"
"""The word for all arrays that autograd tracks. Every other word is the name of a layout."""

_NAMES = (
    "C Fortran transposed strided reversed offset broadcast overlapping unaligned byte-swapped read-only "
    "memmap wild longlong contiguous channels-last expanded unfolded conj neg inference leaf Parameter "
    "non-leaf backwards repeated computed committed stored picked reduced"
)
LAYOUTS = frozenset(_NAMES.split())
"""The layouts of xbridge's own backends, which a mark may name even if the library is not installed."""

_excluded: ContextVar[frozenset[str]] = ContextVar(
    "excluded", default=frozenset({REQUIRES_GRAD, "inference"})
)


def excluded() -> frozenset[str]:
    """Return the layouts and properties that are drawn only on request."""
    return _excluded.get()


def check(words: Iterable[str], known: Iterable[str]) -> None:
    """Raise if a word is not a property or a layout of xbridge's own backends or of the given ones."""
    names = [REQUIRES_GRAD, *LAYOUTS, *known]
    for word in words:
        if word not in names:
            near = get_close_matches(word, names, n=1) or [REQUIRES_GRAD]
            raise OptionError.build(
                f"draw arrays without {word!r}", "it is not a layout or a property", f"without={near[0]!r}"
            )


@contextmanager
def without(words: Iterable[str]) -> Iterator[None]:
    """Exclude further layouts and properties in a block."""
    token = _excluded.set(excluded().union(words))
    try:
        yield
    finally:
        _excluded.reset(token)
