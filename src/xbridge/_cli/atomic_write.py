"""Write a file whole or not at all: beside the target, onto the disk, read back, then renamed.

Until the rename, which the system does in one step, the target is what it was. A run that fails removes what
it has written; one that is killed leaves a hidden `.xbridge-*.part` beside the target, and never a target.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from xbridge._cli.errors import RefusedError
from xbridge.errors import Chained

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedWriter
    from pathlib import Path


def resolve(target: Path, source: Path, *, force: bool) -> Path:
    """Return the file to write, links followed, if it may be written."""

    def ours(error: Exception) -> RefusedError:
        reason = getattr(error, "strerror", "") or str(error)  # of a name that is too long, or no name at all
        return RefusedError.build(f"write {target}", reason, "another name")

    with Chained(ours):
        return _resolved(target, source, force=force)


def _resolved(target: Path, source: Path, *, force: bool) -> Path:
    os.fsencode(target)  # or the system would refuse the name when all is written
    real = target.resolve(strict=True) if target.is_symlink() and target.exists() else target
    reason, hint = "", "another name"
    if "\0" in str(target):
        reason = "its name has a null character"
    elif target.is_dir():
        reason, hint = "it is a directory", f"{target / source.name} with the suffix of the format"
    elif target.is_symlink() and not target.exists():
        reason = "it is a link to a file that is not there"
    elif real.exists() and not real.is_file():
        reason = "it is not a regular file"
    elif not real.parent.is_dir():
        reason = f"there is no directory {real.parent}"
        hint = "another name" if os.path.lexists(real.parent) else f"mkdir -p {real.parent}"
    elif real.exists() and real.samefile(source):
        reason = f"it is the same file as {source}"
    elif real.exists() and not force:
        reason, hint = "it exists", "--force to replace it"
    if reason:
        raise RefusedError.build(f"write {target}", reason, hint)
    return real


@contextmanager
def replacing(target: Path, *, force: bool) -> Iterator[tuple[BufferedWriter, Path]]:
    """A new file, and its name until it takes the target's, when the block ends without an exception."""
    part = target.with_name(f".xbridge-{secrets.token_hex(4)}.part")
    as_it_was = f"{target} is as it was" if target.exists() else "nothing was left behind"
    mode = 0o600 if target.exists() else 0o666  # what was private stays so while it is written
    try:
        with open(part, "xb", opener=partial(os.open, mode=mode)) as file:
            yield file, part
            file.flush()
            os.fsync(file.fileno())
        if target.exists() and not force:
            raise RefusedError.build(f"write {target}", "somebody else has written it meanwhile", "--force")
        _rename(part, target)
    except OSError as error:
        reason = f"{error.strerror or error}, and {as_it_was}"
        raise RefusedError.build(f"write {target}", reason, "a place with room for it") from error
    except KeyboardInterrupt as error:
        raise RefusedError.build(f"write {target}", f"interrupted, and {as_it_was}", "again") from error
    finally:
        part.unlink(missing_ok=True)


def _rename(part: Path, target: Path) -> None:
    """Take the target's name, and the mode and owner of what had it."""
    if target.exists():
        old = target.stat()
        with suppress(PermissionError, AttributeError):  # not everybody may, and not every system can
            os.chown(part, old.st_uid, old.st_gid)
        shutil.copymode(target, part)
    part.replace(target)
    with suppress(OSError):  # the file is there; where directories cannot be synced, the system will
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
