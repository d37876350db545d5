"""Operations on host memory, by NumPy: copies, casts, checks, and imports of foreign objects.

NumPy allocates and copies on the host for all backends. It asks the system for huge pages, so that a large
copy into its new memory is several times faster than in other libraries. `import xbridge` does not import
this package; the first conversion that needs it does.
"""

from xbridge._host.memory import (
    as_c_order,
    as_readonly,
    as_writable,
    astype,
    astype_checked,
    caster,
    check_cast,
    copies_to_protect,
    copy,
    dense_copier,
    ones,
    with_plain_strides,
)

name = "numpy"

__all__ = [
    "as_c_order",
    "as_readonly",
    "as_writable",
    "astype",
    "astype_checked",
    "caster",
    "check_cast",
    "copies_to_protect",
    "copy",
    "dense_copier",
    "ones",
    "with_plain_strides",
]
