"""Operations on host memory, in NumPy.

NumPy allocates and copies on the host for all backends: it asks the system for huge pages, so a large copy
into its fresh memory is several times faster than elsewhere. The adapters in `exporters` know libraries of
tables; no other module here names a library but NumPy. The
first conversion that needs the package imports it; `import xbridge` does not.
"""

from xbridge._host.memory import (
    as_readonly,
    as_writable,
    astype,
    astype_checked,
    caster,
    check_cast,
    copy,
    ones,
)

name = "numpy"

__all__ = ["as_readonly", "as_writable", "astype", "astype_checked", "caster", "check_cast", "copy", "ones"]
