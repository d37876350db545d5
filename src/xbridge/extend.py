"""The names that packages beside the core need: functions across libraries, the test kit, the command line.

Of the rest of xbridge, they import its top, `xbridge.protocol` and `xbridge.errors`. Names of modules that
import NumPy are imported on first use, so that a program does not pay for them all.
"""

from importlib import import_module

from xbridge._core import entry_points, locks, tracing
from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES, category, is_inexact
from xbridge._core.text import format_bytes, printable, table
from xbridge._registry import call_cache
from xbridge._registry.registry import backend_for, entries_for
from xbridge._registry.registry import get as get_backend
from xbridge.backends import HOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xbridge._engine.convert import each
    from xbridge._host.memory import native_dtype
    from xbridge._observe.policy import rules_in, set_process_rules
    from xbridge._observe.record import merge as merge_record
    from xbridge._plan.options import check_options
    from xbridge._plan.rules import chosen as resolve_dtype
    from xbridge._plan.steps import Options, Plan
    from xbridge.tree import containers
else:

    def __getattr__(name: str) -> object:
        """Import a late name on first access, and keep it."""
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, own_name = _LATE[name]
        found: object = import_module(module)
        if own_name:
            found = getattr(found, own_name)
        globals()[name] = found
        return found


__all__ = [
    "CPU",
    "DTYPES",
    "HOST",
    "Options",
    "Plan",
    "backend_for",
    "call_cache",
    "category",
    "check_options",
    "containers",
    "each",
    "entries_for",
    "entry_points",
    "format_bytes",
    "get_backend",
    "is_inexact",
    "locks",
    "merge_record",
    "native_dtype",
    "printable",
    "resolve_dtype",
    "rules_in",
    "set_process_rules",
    "table",
    "tracing",
]

_LATE = {
    "Options": ("xbridge._plan.steps", "Options"),
    "Plan": ("xbridge._plan.steps", "Plan"),
    "check_options": ("xbridge._plan.options", "check_options"),
    "containers": ("xbridge.tree.containers", ""),
    "each": ("xbridge._engine.convert", "each"),
    "merge_record": ("xbridge._observe.record", "merge"),
    "native_dtype": ("xbridge._host.memory", "native_dtype"),
    "resolve_dtype": ("xbridge._plan.rules", "chosen"),
    "rules_in": ("xbridge._observe.policy", "rules_in"),
    "set_process_rules": ("xbridge._observe.policy", "set_process_rules"),
}
"""The module of each late name, and its name there; nothing for the module itself."""
