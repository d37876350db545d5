"""What a frozen program needs of xbridge: the modules that are imported by name, and the metadata.

PyInstaller follows imports, and backends are imported by name. Which libraries to bundle is left to the
program: an import in a backend does not make PyInstaller bundle torch, an import in the program does.
"""

from pathlib import Path

from PyInstaller.utils.hooks import copy_metadata

from xbridge import backends
from xbridge._host import exporters

PACKAGE = Path(backends.__file__).parents[1]
LEFT_OUT = ("_pyinstaller", "files", "testing")
"""What runs on a developer's machine."""

modules = [path.relative_to(PACKAGE).with_suffix("").parts for path in PACKAGE.rglob("*.py")]
hiddenimports = [".".join(("xbridge", *parts)) for parts in modules if parts[0] not in LEFT_OUT]
datas = copy_metadata("xbridge-array")
excludedimports = [
    *exporters.INDEX,
    *(root for name, entry in backends.INDEX.items() if name != backends.HOST for root in entry.roots),
]
