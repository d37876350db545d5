"""Atomic writes: a new file is written beside its target, synced to disk, and then renamed.

The system renames a file in one step, and until then the target is unchanged. A run that fails removes its
new file. One that is killed leaves it, as a hidden `.xbridge-*.part`, and never a part of a target.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from xbridge.errors import Chained
from xbridge.files.errors import write_error


def resolve(target: Path, sources: Sequence[Path], *, force: bool) -> Path:
    """Return the file to write, with links followed; raise if it is one of the sources or not writable."""
    reason = hint = ""
    with Chained(lambda error: write_error(target, getattr(error, "strerror", "") or error, hint)):
        real = target.resolve() if target.is_symlink() else target
        if not real.parent.is_dir():
            reason, hint = f"there is no directory {target.parent}", f"mkdir -p {target.parent}"
        elif real.is_dir():
            reason = "it is a directory"
        elif real.exists() and not real.is_file():
            reason = "it is not a regular file"
        elif real.exists() and (same := [one for one in sources if real.samefile(one)]):
            reason = f"it is the same file as {same[0]}"
        elif real.exists() and not force:
            reason, hint = "it exists", "--force to replace it"
    if reason:
        raise write_error(target, reason, hint)
    return real


@contextmanager
def replace_file(target: Path, *, force: bool) -> Iterator[Path]:
    """Yield a new file. If the block does not raise, it is renamed to the target."""
    part = target.with_name(f".xbridge-{secrets.token_hex(4)}.part")
    state = f"{target} is as it was" if target.exists() else "nothing was left behind"
    try:
        mode = 0o600 if target.exists() else 0o666  # the old target may be private
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        yield part
        with part.open("r+b") as file:
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, part)
            if not force:
                raise write_error(target, "another program has written it meanwhile", "--force")
        part.replace(target)
    except OSError as error:
        raise write_error(target, f"{error.strerror or error}, and {state}") from error
    finally:
        part.unlink(missing_ok=True)
