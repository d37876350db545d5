"""Samples of read-only NumPy: every layout of NumPy in native byte order, read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbridge.testing._readonly import ReadOnlyArray
from xbridge.testing.samples import numpy as host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xbridge.protocol import HostArray
    from xbridge.testing.samples.model import LayoutCase


def _read_only(case: LayoutCase) -> LayoutCase:
    """Return the same case with read-only arrays."""
    return case._replace(
        make=lambda values: ReadOnlyArray(case.make(values)), writable=False, as_readonly=None
    )


def _of(make: Callable[[], HostArray]) -> Callable[[], ReadOnlyArray]:
    return lambda: ReadOnlyArray(make())


cases: Mapping[str, LayoutCase] = {
    name: _read_only(case) for name, case in host.cases.items() if case.writable and name != "byte-swapped"
}

refused: Mapping[str, Callable[[], ReadOnlyArray]] = {
    name: _of(host.refused[name])
    for name in ("objects", "strings", "bytes", "dates", "durations", "structures", "raw bytes")
}

read: Callable[[HostArray], HostArray] = host.read
write: Callable[[HostArray], None] = host.write
