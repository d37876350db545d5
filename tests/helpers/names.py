"""Names of test cases that are the same in every process."""

from __future__ import annotations

import re


def stable_id(given: object) -> str:
    """Return the representation of an object without its address, which differs between processes."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(given))
