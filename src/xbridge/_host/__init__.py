"""Host memory: what is done where all libraries meet, in NumPy.

NumPy allocates and copies on the host for everybody: it asks the system for huge pages, so a large copy
into its fresh memory is several times faster than elsewhere. Nothing here knows another library.
Imported when the first conversion needs it, never by `import xbridge`.
"""

from xbridge._host.dlpack import ElsewhereError
from xbridge._host.fill import ALIGNMENT, fill
from xbridge._host.importers import admit
from xbridge._host.memory import cast, check, copy, dtype_of_code, freeze, overlap, thaw
from xbridge._host.sequences import Nest, is_literal, literal, nest, promote, sample

name = "numpy"

__all__ = [
    "ALIGNMENT",
    "ElsewhereError",
    "Nest",
    "admit",
    "cast",
    "check",
    "copy",
    "dtype_of_code",
    "fill",
    "freeze",
    "is_literal",
    "literal",
    "nest",
    "overlap",
    "promote",
    "sample",
    "thaw",
]
