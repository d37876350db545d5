"""Operations on host memory, in NumPy.

NumPy allocates and copies on the host for all backends: it asks the system for huge pages, so a large copy
into its fresh memory is several times faster than elsewhere. No module here names another array library. The
first conversion that needs the package imports it; `import xbridge` does not.
"""

from xbridge._host.dlpack import NotOnHostError
from xbridge._host.importers import import_array
from xbridge._host.memory import (
    ALIGNMENT,
    as_readonly,
    as_writable,
    astype,
    astype_checked,
    check_cast,
    copy,
    dtype_of_code,
    extremes,
    fill,
    ones,
    overlap,
    overlap_of_views,
)
from xbridge._host.sequences import (
    Nest,
    is_literal,
    literal,
    nest,
    of_scalars,
    plain_numbers,
    promote,
    sample,
)

name = "numpy"

__all__ = [
    "ALIGNMENT",
    "Nest",
    "NotOnHostError",
    "as_readonly",
    "as_writable",
    "astype",
    "astype_checked",
    "check_cast",
    "copy",
    "dtype_of_code",
    "extremes",
    "fill",
    "import_array",
    "is_literal",
    "literal",
    "nest",
    "of_scalars",
    "ones",
    "overlap",
    "overlap_of_views",
    "plain_numbers",
    "promote",
    "sample",
]
