"""What xbridge promises of transfers holds for large arrays too, which go through pinned buffers."""

from __future__ import annotations

import pytest
from emulated.test_transfers import *  # noqa: F403 -- the same promises

pytestmark = pytest.mark.usefixtures("small_buffers")
