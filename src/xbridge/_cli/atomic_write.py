"""Atomic writes: a file is written beside the target, synced to disk, read back, and then renamed.

The system renames in one step, and until then the target is unchanged. A run that fails removes its partial
file. A run that is killed leaves a hidden `.xbridge-*.part` beside the target, and never a partial target.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedWriter
from pathlib import Path

from xbridge._cli.errors import RefusedError
from xbridge.errors import Chained


def resolve(target: Path, source: Path, *, force: bool) -> Path:
    """Return the file to write, links followed, if it may be written."""

    def ours(error: Exception) -> RefusedError:
        reason = getattr(error, "strerror", "") or str(error)  # the name is too long, or invalid
        return RefusedError.build(f"write {target}", reason, "another name")

    reason, hint = "", "another name"
    with Chained(ours):
        os.fsencode(target)  # otherwise the system would refuse the name after all is written
        real = target.resolve(strict=True) if target.is_symlink() and target.exists() else target
        if "\0" in str(target):
            reason = "its name has a null character"
        elif target.is_dir():
            reason, hint = "it is a directory", f"{target / source.name} with the suffix of the format"
        elif target.is_symlink() and not target.exists():
            reason = "it is a link to a missing file"
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
    """Yield a new file and its name. It is renamed to the target if the block raises nothing."""
    part = target.with_name(f".xbridge-{secrets.token_hex(4)}.part")
    as_it_was = f"{target} is as it was" if target.exists() else "nothing was left behind"
    mode = 0o600 if target.exists() else 0o666  # a private file stays private while it is written
    try:
        with open(part, "xb", opener=partial(os.open, mode=mode)) as file:
            yield file, part
            file.flush()
            os.fsync(file.fileno())
        if target.exists() and not force:
            raise RefusedError.build(f"write {target}", "another program has written it meanwhile", "--force")
        _rename(part, target)
    except OSError as error:
        reason = f"{error.strerror or error}, and {as_it_was}"
        raise RefusedError.build(f"write {target}", reason, "a disk with space for it") from error
    except KeyboardInterrupt as error:
        raise RefusedError.build(f"write {target}", f"interrupted, and {as_it_was}", "again") from error
    finally:
        part.unlink(missing_ok=True)


def _rename(part: Path, target: Path) -> None:
    """Rename the partial file to the target, with the mode and owner of an old target."""
    if target.exists():
        old = target.stat()
        with suppress(PermissionError, AttributeError):  # some users may not, and some systems cannot
            os.chown(part, old.st_uid, old.st_gid)
        shutil.copymode(target, part)
    part.replace(target)
    with suppress(OSError):  # the file exists; some systems cannot sync directories
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
