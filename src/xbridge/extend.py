"""The names that packages beside the core need: functions across libraries, the test kit, the command line.

Of the rest of xbridge, they import its top, `xbridge.protocol` and `xbridge.errors`. Each name is imported
on first use, so that a program does not pay for the others.
"""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xbridge._core.devices import CPU
    from xbridge._core.dtypes import DTYPES, category, is_inexact
    from xbridge._core.dtypes import nearest as nearest_dtype
    from xbridge._core.text import format_bytes, printable, table
    from xbridge._host.memory import native_dtype
    from xbridge._observe.policy import rules_in, set_process_rules
    from xbridge._observe.record import merge as merge_record
    from xbridge._plan.options import read_device, read_dtype
    from xbridge._registry.registry import backend_for, entries_for
    from xbridge._registry.registry import get as get_backend
    from xbridge.backends import HOST
else:

    def __getattr__(name: str) -> object:
        """Import a name on first access, and keep it."""
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, own_name = _LATE[name]
        found: object = getattr(import_module(module), own_name)
        globals()[name] = found
        return found


__all__ = [
    "CPU",
    "DTYPES",
    "HOST",
    "backend_for",
    "category",
    "entries_for",
    "format_bytes",
    "get_backend",
    "is_inexact",
    "merge_record",
    "native_dtype",
    "nearest_dtype",
    "printable",
    "read_device",
    "read_dtype",
    "rules_in",
    "set_process_rules",
    "table",
]

_LATE = {
    "CPU": ("xbridge._core.devices", "CPU"),
    "DTYPES": ("xbridge._core.dtypes", "DTYPES"),
    "HOST": ("xbridge.backends", "HOST"),
    "backend_for": ("xbridge._registry.registry", "backend_for"),
    "category": ("xbridge._core.dtypes", "category"),
    "entries_for": ("xbridge._registry.registry", "entries_for"),
    "format_bytes": ("xbridge._core.text", "format_bytes"),
    "get_backend": ("xbridge._registry.registry", "get"),
    "is_inexact": ("xbridge._core.dtypes", "is_inexact"),
    "merge_record": ("xbridge._observe.record", "merge"),
    "native_dtype": ("xbridge._host.memory", "native_dtype"),
    "nearest_dtype": ("xbridge._core.dtypes", "nearest"),
    "printable": ("xbridge._core.text", "printable"),
    "read_device": ("xbridge._plan.options", "read_device"),
    "read_dtype": ("xbridge._plan.options", "read_dtype"),
    "rules_in": ("xbridge._observe.policy", "rules_in"),
    "set_process_rules": ("xbridge._observe.policy", "set_process_rules"),
    "table": ("xbridge._core.text", "table"),
}
"""The module of each name, and its name there."""
