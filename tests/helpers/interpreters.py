"""What the interpreter that runs the tests can and cannot do."""

from __future__ import annotations

import sys
from sysconfig import get_config_var

import pytest

frees_classes = pytest.mark.skipif(
    sys.version_info < (3, 14) and bool(get_config_var("Py_GIL_DISABLED")),
    reason="Python 3.13 without the GIL frees no class once a thread has started",
)
