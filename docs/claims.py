"""Compare the declarations of backends with measurements.

The tables of support.md, the rules of sharing and the expected failures of the test kit follow from the
declarations of backends. A wrong declaration would make all of them wrong, so each is measured.
"""

from collections.abc import Callable, Iterator

import numpy as np
from declared import ACCELERATORS, Declared, expected
from measured import conversion, goes, measured, memory, sources

import xbridge
from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES
from xbridge._host import memory as _host
from xbridge._registry.registry import get


def contradictions(backends: list[Declared]) -> Iterator[str]:
    """Yield every declaration of a backend that a measurement refutes."""
    here = [backend for backend in backends if backend.is_measured]
    for backend in here:
        for promise, is_kept in PROBES.items():
            so = is_kept(backend)
            if so is (promise in backend.gaps):
                gap = "a gap" if so else "no gap"
                yield f"{backend.name} declares {gap} in {promise!r}, which is {'kept' if so else 'broken'}"
        for word in DTYPES:
            there = goes(backend.name, word)
            if there is not (get(backend.name).unsupported_dtype(word, CPU) is None):
                yield f"{backend.name} says that it {'lacks' if there else 'has'} {word}, which is not so"
        if backend.host_only and len(get(backend.name).devices()) > 1:
            yield f"{backend.name} declares that it is host_only, and has other devices"
    for row, x in sources(backends).items():
        source = next(backend for backend in backends if backend.name == row.partition(",")[0])
        for target in here if source.is_measured else ():
            should, found = expected(source, target, guarded="," in row), measured(x, target.name)
            if should != found:
                yield f"{row} to {target.name} is {should} by what they declare, and {found} when measured"
            kept = found if found.startswith(("shared", "itself")) else "refused: `CopyError`"
            if (
                conversion(x, target.name, copy=False) != kept
                or conversion(x, target.name, copy=True) != "copied"
            ):
                yield f"{row} to {target.name} is {found}, and not so with copy=False or copy=True"


def _is_read_only(backend: Declared) -> bool:
    host = _host.as_readonly(_host.copy(np.zeros(1 << 16, "float32"), "C"))  # aligned for every library
    x = get(backend.name).from_numpy(host)
    layout = get(backend.name).memory_layout(x)
    return not layout.writable and (layout.is_unallocated() or xbridge.shares_memory(x, host))


def _has_devices(backend: Declared) -> bool:
    return backend.name in ACCELERATORS or len(get(backend.name).devices()) > 1


def _has_autograd(backend: Declared) -> bool:
    try:
        xbridge.asarray(np.ones(2, "float32"), backend=backend.name, requires_grad=True)
    except xbridge.GradientError:
        return False
    return True


def _has_namespace(backend: Declared) -> bool:
    try:
        return hasattr(xbridge.array_namespace(xbridge.asarray([True], backend=backend.name)), "asarray")
    except xbridge.XBridgeError:
        return False


def _shares_host_memory(backend: Declared) -> bool:
    host = np.ones(4, "float32")
    return xbridge.shares_memory(host, xbridge.to_backend(host, backend.name))


def _keeps_the_order(backend: Declared) -> bool:
    host = np.arange(6, dtype="float32").reshape(2, 3).T
    fresh = memory(xbridge.to_backend(host, backend.name, copy=True))
    return bool(fresh.ravel("K").tobytes() == host.ravel("K").tobytes())


PROBES: dict[str, Callable[[Declared], bool]] = {
    "readonly": _is_read_only,
    "devices": _has_devices,
    "autograd": _has_autograd,
    "namespace": _has_namespace,
    "sharing": _shares_host_memory,
    "axis_order": _keeps_the_order,
}
"""Functions that return True if a backend has a feature which it could declare as a gap."""
