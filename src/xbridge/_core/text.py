"""Format tables and amounts as text, for plans, records and the command line."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return the rows as lines of aligned columns. The columns `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def preformatted(text: str) -> str:
    """Return text as HTML for a notebook, which keeps its columns aligned."""
    from html import escape  # noqa: PLC0415 -- only for notebooks

    return f"<pre>{escape(text)}</pre>"


def format_bytes(nbytes: int) -> str:
    """Return an amount of memory with a unit, rounded to three digits."""
    amount, units = float(nbytes), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 999.5 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{_round(amount)} {units[0]}"


def format_seconds(seconds: float) -> str:
    """Return a duration with a unit, rounded to three digits."""
    return f"{_round(seconds * 1e3)} ms" if seconds < 0.9995 else f"{_round(seconds)} s"


def _round(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 99.5 else f"{amount:.3g}"


def printable(text: str) -> str:
    """Escape control characters, which a terminal would obey, and surrogates, which cannot be encoded."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
