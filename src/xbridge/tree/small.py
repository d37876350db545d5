"""Convert small trees of dicts, lists and tuples by cached converters of their leaves, in one walk.

In such a tree the walk of `flatten`, which supports any container, takes longer than the conversions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xbridge._core.devices import CPU
from xbridge._core.literals import NUMBERS
from xbridge._core.tracing import none_in_traces
from xbridge._engine.repeat import Converters, compose
from xbridge._host.memory import as_readonly
from xbridge._plan.options import find_converter, read_options
from xbridge._plan.steps import Options
from xbridge._registry.call_cache import cache_version, cached, decline, lookup_direct, store, unchanged
from xbridge._registry.registry import are_arrays, backend_for, get
from xbridge.backends import HOST

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from xbridge._core.protocol import Backend
    from xbridge._plan.options import CallOptions

    Convert = Callable[[Any], Any]

MAX_SMALL_TREE = 64
"""The most leaves and containers of a small tree. In a larger one, converting arrays together is faster."""

_CONTAINERS = (dict, list, tuple)
_LITERALS = (str, bytes, *NUMBERS, type(None))
_NOT_ARRAYS = frozenset((*_CONTAINERS, *_LITERALS))


@none_in_traces
def cache_small_tree(name: str | ModuleType, options: CallOptions, *, scalars: bool) -> None:
    """Cache a call that succeeded for one tree, for all small trees of dicts, lists and tuples."""
    version, key = cache_version(), options.key("tree", name, NUMBERS if scalars else ())
    if options.are_constant(name) and key not in cached:
        store(key, version, _small_tree_converter(get(name), options, scalars=scalars))


def _small_tree_converter(  # noqa: C901 -- one walk: a call for each leaf would take as long as its conversion
    target: Backend, options: CallOptions, *, scalars: bool
) -> Convert:
    """Return the function that converts small trees, or declines."""
    checked, is_host = read_options((target,), options), target.name == HOST

    def find(cls: type) -> Convert | None:
        if cls in _CONTAINERS:
            return None
        if cls in NUMBERS and scalars:
            known = options._replace(writable=None).lookup("asarray", target.name, cls, type(None))
            return compose(known, as_readonly) if options.writable is False else known
        if cls in _LITERALS:
            return unchanged
        if not are_arrays(cls) or checked.device not in (None, CPU):
            return decline  # arrays are moved to a device together, by a plan for all of them
        source = backend_for(cls)
        if is_host and checked == Options() and source and source.transfers.has_packs:
            return lookup_direct(HOST, cls)  # arrays on a device are fetched together, so no single move here
        return find_converter(checked, target.name, cls)

    converters = Converters(find)

    def convert_small_tree(  # noqa: C901, PLR0912 -- as above
        tree: Any, above: dict[int, tuple[Any, Any]] | None = None
    ) -> Any:
        """Convert a tree. `above` has the containers and converted leaves before it, with their results."""
        cls = type(tree)
        built: Any
        if cls is dict or cls is list:
            built = tree.copy()  # another thread may change the tree meanwhile
        elif cls is tuple:
            built = list(tree)
        elif cls in _NOT_ARRAYS:
            return None
        else:  # the whole tree is one array
            built = [tree]
        seen = {} if above is None else above  # by identity, which nothing else gets while it is here
        if len(built) + len(seen) > MAX_SMALL_TREE:
            return None
        for at, x in built.items() if cls is dict else enumerate(built):
            convert = converters[type(x)]
            if convert is unchanged:
                continue
            key = id(x)
            if key in seen and type(x) not in NUMBERS:
                y = seen[key][1]  # of a repeated array; None for a container, which may contain itself
            elif convert:
                y = convert(x)
                seen[key] = x, y
            else:
                seen[key] = x, None
                y = convert_small_tree(x, seen)
            if y is None:
                if convert:
                    converters.pop(type(x), None)  # the plan that follows may cache a better one
                return None
            built[at] = y
        if cls is tuple:
            return tuple(built)
        return built if cls in _CONTAINERS else built[0]

    return convert_small_tree
