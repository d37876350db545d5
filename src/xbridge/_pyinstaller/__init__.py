"""The hooks of xbridge for PyInstaller, which finds them by the entry point `pyinstaller40`."""

from pathlib import Path


def hook_dirs() -> list[str]:
    """Return the folder with the hooks."""
    return [str(Path(__file__).parent)]
