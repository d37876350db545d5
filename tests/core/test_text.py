"""How amounts are written."""

from __future__ import annotations

from xbridge._core import text


def test_record__amounts_are_written_for_people() -> None:
    """Amounts are written for people."""
    sizes = (0, 999, 1000, 999_900, 1_234_567, 5 * 10**15)
    written = ["0 B", "999 B", "1 kB", "1 MB", "1.23 MB", "5,000 TB"]
    assert [text.format_bytes(n) for n in sizes] == written
    times = (0.0000123, 0.5, 0.9999, 12.0, 1234.5)
    assert [text.format_seconds(s) for s in times] == ["0.0123 ms", "500 ms", "1 s", "12 s", "1,234 s"]
