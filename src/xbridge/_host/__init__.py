"""Host memory: what is done where all libraries meet, in NumPy.

NumPy allocates and copies on the host for everybody: it asks the system for huge pages, so a large copy
into its fresh memory is several times faster than elsewhere. Nothing here knows another library.
Imported when the first conversion needs it, never by `import xbridge`.
"""

from xbridge._host.dlpack import NotOnHostError
from xbridge._host.importers import import_array
from xbridge._host.memory import (
    ALIGNMENT,
    as_readonly,
    as_writable,
    astype,
    check_cast,
    copy,
    dtype_of_code,
    extremes,
    fill,
    overlap,
)
from xbridge._host.sequences import Nest, is_literal, literal, nest, promote, sample

name = "numpy"

__all__ = [
    "ALIGNMENT",
    "Nest",
    "NotOnHostError",
    "as_readonly",
    "as_writable",
    "astype",
    "check_cast",
    "copy",
    "dtype_of_code",
    "extremes",
    "fill",
    "import_array",
    "is_literal",
    "literal",
    "nest",
    "overlap",
    "promote",
    "sample",
]
