"""The promises of every backend, as plain test functions over the fixture `backend`.

``pytest --pyargs xbridge.testing.conformance --xbridge=NAME`` runs them, and so does a test file that says
``from xbridge.testing.conformance import *``. A check takes another route than the function that it checks:
values are known before an array is made of them, and memory is read at its address.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from xbridge.errors import MissingLibraryError

try:
    import pytest  # noqa: F401 -- reports a missing library here
except ImportError as _error:
    raise MissingLibraryError.build(
        "run the conformance suite", "pytest is not installed", "pip install 'xbridge-array[testing]'"
    ) from _error

__all__ = []

for _module in iter_modules(__path__, f"{__name__}."):
    if _module.name.rpartition(".")[2].startswith("test_"):
        for _name, _thing in vars(import_module(_module.name)).items():
            if _name.startswith("test_"):
                globals()[_name] = _thing
                __all__ += (_name,)  # noqa: PLE0604 -- a string
