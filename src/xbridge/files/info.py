"""`info`: the installed backends with their versions and devices, and how to install the others."""

from __future__ import annotations

import platform
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib.metadata import distributions
from typing import Any

from xbridge import device_of, known_backends
from xbridge.errors import UnknownBackendError, XBridgeError
from xbridge.extend import get_backend
from xbridge.files.errors import one_line
from xbridge.files.output import print_json, print_table

HELP = "show the installed libraries and their devices"
DESCRIPTION = """\
Show the installed backends with their versions and devices, the settings that affect conversions, and
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
    try:
        backend = get_backend(name)
    except UnknownBackendError:
        raise
    except XBridgeError as error:
        why, hint = one_line(error.reason), one_line(error.hint)
        return {"name": name, "available": False, "why": why, "try": hint}
    return {
        "name": name,
        "available": True,
        "version": getattr(sys.modules.get(name), "__version__", ""),
        "devices": list(backend.devices()),
        "switches": _SWITCHES.get(name, dict)(),
    }


def _format_row(info: dict[str, Any]) -> list[str]:
    if not info["available"]:
        return [info["name"], "", "", f"{info['why']}; try {info['try']}"]
    switches = [f"{name} {value}" for name, value in info["switches"].items()]
    return [info["name"], info["version"], ", ".join(info["devices"]), ", ".join(switches)]


def _torch_switches() -> dict[str, object]:
    import torch  # noqa: PLC0415 -- only where it is installed

    return {
        "default dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "default device": str(torch.get_default_device()),
        "CUDA": torch.version.cuda or "none",
    }


def _jax_switches() -> dict[str, object]:
    import jax  # noqa: PLC0415 -- only where it is installed

    x64 = jax.dtypes.canonicalize_dtype("int64") == "int64"
    return {"x64": x64, "default device": device_of(jax.numpy.empty(0))}


_SWITCHES: dict[str, Callable[[], dict[str, object]]] = {"torch": _torch_switches, "jax": _jax_switches}
