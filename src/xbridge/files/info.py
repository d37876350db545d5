"""`info`: the installed backends with their versions and devices, and how to install the others."""

from __future__ import annotations

import os
import platform
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib.metadata import distributions
from typing import Any

from xbridge import Device, asarray, device_of, known_backends, native_device
from xbridge.errors import UnknownBackendError, XBridgeError
from xbridge.extend import format_bytes, get_backend
from xbridge.files.errors import one_line
from xbridge.files.output import print_json, print_table

HELP = "show the installed libraries and their devices"
DESCRIPTION = """\
Show the installed backends with their versions, devices and memory, the settings that affect conversions, and
how to install the missing backends."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "backends", nargs="*", metavar="BACKEND", help="show only these backends (default: all)"
    )


def run(asked: Namespace) -> int:
    """Print the backends."""
    here = {
        "xbridge": next((found.version for found in distributions(name="xbridge-array")), "not installed"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    found = [_describe_backend(name) for name in asked.backends or known_backends()]
    if asked.json:
        print_json({**here, "backends": found})
    else:
        print(", ".join(f"{name} {text}" for name, text in here.items()))
        print_table(["backend", "version", "devices", "switches"], [_format_row(info) for info in found])
    return 0


def _describe_backend(name: str) -> dict[str, object]:
    """Return the facts about one backend."""
    try:
        backend = get_backend(name)
    except UnknownBackendError:
        raise
    except XBridgeError as error:
        why, hint = one_line(error.reason), one_line(error.hint)
        return {"name": name, "available": False, "why": why, "try": hint}
    switches, memory = _PROBES.get(name, (dict, lambda _: None))
    return {
        "name": name,
        "available": True,
        "version": getattr(sys.modules.get(name), "__version__", ""),
        "devices": [
            {"name": device, "bytes": _host_memory() if device == "cpu" else memory(device)}
            for device in backend.devices()
        ],
        "switches": switches(),
    }


def _format_row(info: dict[str, Any]) -> list[str]:
    """Return the facts about one backend as four cells."""
    if not info["available"]:
        return [info["name"], "", "", f"{info['why']}; try {info['try']}"]
    devices = [
        device["name"] if device["bytes"] is None else f"{device['name']} ({format_bytes(device['bytes'])})"
        for device in info["devices"]
    ]
    switches = [f"{name} {value}" for name, value in info["switches"].items()]
    return [info["name"], info["version"], ", ".join(devices), ", ".join(switches)]


def _host_memory() -> int | None:
    """Return the memory of this machine, or None if the system does not report it."""
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _torch_switches() -> dict[str, object]:
    import torch  # noqa: PLC0415 -- only where it is installed

    return {
        "default dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "default device": str(torch.get_default_device()),
        "CUDA": torch.version.cuda or "none",
    }


def _torch_memory(device: Device) -> int | None:
    import torch  # noqa: PLC0415 -- only where it is installed

    ask = getattr(getattr(torch, device.kind), "mem_get_info", None)
    return ask(device.index)[1] if ask else None


def _jax_switches() -> dict[str, object]:
    import jax  # noqa: PLC0415 -- only where it is installed

    x64 = jax.dtypes.canonicalize_dtype("int64") == "int64"
    return {"x64": x64, "default device": device_of(jax.numpy.empty(0))}


def _jax_memory(device: Device) -> int | None:
    found = native_device(asarray(0, backend="jax", device=device))
    return (found.memory_stats() or {}).get("bytes_limit")


_PROBES: dict[str, tuple[Callable[[], dict[str, object]], Callable[[Device], int | None]]] = {
    "torch": (_torch_switches, _torch_memory),
    "jax": (_jax_switches, _jax_memory),
}
"""For each library, the functions that report its settings, and the memory of one of its devices."""
