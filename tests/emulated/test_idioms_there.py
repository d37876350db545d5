"""The idioms of the documents that need CUDA, on the emulated accelerator: the same page, the same tests.

What stands there for `cuda` holds word for word for `emu`, so the words are exchanged, in the tests and in
the page that they read; and a few sizes, which matter only to a device that is in a hurry.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from emulated.there import KIND

if KIND == "cuda":
    pytest.skip("tests/project/test_idioms.py itself runs them", allow_module_level=True)

TESTS = Path(__file__).parents[1] / "project" / "test_idioms.py"
EXCHANGED = {
    "cuda": "emu",
    'read_text("utf-8")': 'read_text("utf-8").replace("cuda", "emu")',
    "4096": "64",
    "1 << 26": "1 << 6",
}


def exchanged() -> ModuleType:
    """The tests, for another device."""
    source = TESTS.read_text("utf-8")
    for word, other in EXCHANGED.items():
        assert word in source
        source = source.replace(word, other)
    module = ModuleType("idioms_there")
    module.__file__ = str(TESTS)
    exec(compile(source, str(TESTS), "exec"), vars(module))
    return module


globals().update((name, value) for name, value in vars(exchanged()).items() if name.startswith("test_"))
