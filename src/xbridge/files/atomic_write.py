"""Atomic writes: a file is written beside the target, synced to disk, read back, and then renamed.

The system renames in one step, and until then the target is unchanged. A run that fails removes its partial
file. A run that is killed leaves a hidden `.xbridge-*.part` beside the target, and never a partial target.

Several files are renamed one after the other, the last of them, which names the others, at the end. The old
ones are renamed before, and renamed back if a step fails. So a run that is killed leaves no last file that
names a file that is not there.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EACCES, ENOENT, EPERM, EROFS
from functools import partial
from io import BufferedWriter
from pathlib import Path

from xbridge.errors import Chained
from xbridge.files.errors import RefusedError, check_name


def resolve(target: Path, source: Path, *others: Path, force: bool) -> Path:
    """Return the file to write, with links followed; raise if it is one of the sources or not writable."""

    def ours(error: Exception) -> RefusedError:
        reason = getattr(error, "strerror", "") or str(error)  # the name is too long, or invalid
        return RefusedError.build(f"write {target}", reason, "another name")

    reason, hint = "", "another name"
    with Chained(ours):
        os.fsencode(target)  # an invalid name must fail before anything is written
        check_name(target)
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
        elif real.exists() and (same := [one for one in (source, *others) if real.samefile(one)]):
            reason = f"it is the same file as {same[0]}"
        elif real.exists() and not force:
            reason, hint = "it exists", "--force to replace it"
    if reason:
        raise RefusedError.build(f"write {target}", reason, hint)
    return real


def find_obsolete_file(path: Path, target: Path, *sources: Path, force: bool) -> list[Path]:
    """Return the old file that the new ones replace under other names, if any; raise if it is a source."""
    if not os.path.lexists(path) or (path.exists() and any(map(path.samefile, sources))):
        return []
    reason, hint = "", "another name"
    if path.is_symlink():
        reason = "is a link, which files of other names cannot replace"
    elif not path.is_file():
        reason = "is not a regular file"
    elif not force:
        reason, hint = "exists, and would be another model of the same name", "--force to remove it"
    if reason:
        raise RefusedError.build(f"write {target}", f"{path} {reason}", hint)
    return [path]


@contextmanager
def replace_files(*targets: Path, gone: Sequence[Path] = (), force: bool) -> Iterator[list[Path]]:
    """Yield the name of a partial file for each target. If the block does not raise, they are renamed.

    The files that are `gone` are removed then, and the last target is renamed last.
    """
    parts = [target.with_name(f".xbridge-{secrets.token_hex(4)}.part") for target in targets]
    shown = targets[-1]
    as_it_was = f"{shown} is as it was" if shown.exists() else "nothing was left behind"
    renames = False
    try:
        yield parts
        for target in targets:
            if target.exists() and not force:
                reason = "another program has written it meanwhile"
                raise RefusedError.build(f"write {target}", reason, "--force")
        renames = True
        _rename(parts, targets, [path for path in gone if path.exists()])
    except OSError as error:
        reason = f"{error.strerror or error}, and {as_it_was}"
        hint = (
            "another folder" if error.errno in (EACCES, EPERM, EROFS, ENOENT) else "a disk with space for it"
        )
        raise RefusedError.build(f"write {shown}", reason, hint) from error
    except KeyboardInterrupt as error:
        done = renames and not any(part.exists() for part in parts)
        state = f"{shown} is complete" if done else as_it_was
        raise KeyboardInterrupt(f"cannot write {shown}: interrupted, and {state}; try again") from error
    finally:
        _remove(parts)


@contextmanager
def new_file(part: Path, target: Path) -> Iterator[BufferedWriter]:
    """Yield a new file, and sync it to disk. If the old target is private, the new file is so at once."""
    mode = 0o600 if target.exists() else 0o666
    with open(part, "xb", opener=partial(os.open, mode=mode)) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _rename(parts: Sequence[Path], targets: Sequence[Path], gone: Sequence[Path]) -> None:
    """Rename the partial files to the targets, with the mode and owner of old targets."""
    old = [target for target in targets[::-1] if target.exists()]
    for part, target in zip(parts, targets, strict=True):
        if target in old:
            stat = target.stat()
            with suppress(PermissionError, AttributeError):  # some users may not, and some systems cannot
                os.chown(part, stat.st_uid, stat.st_gid)
            shutil.copymode(target, part)
    if len(targets) == 1 and not gone:
        parts[0].replace(targets[0])
    else:
        _exchange(list(zip(parts, targets, strict=True)), [*old, *gone])
    with suppress(OSError):  # the file exists; some systems cannot sync directories
        folder = os.open(targets[0].parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _exchange(new: Sequence[tuple[Path, Path]], old: Sequence[Path]) -> None:
    """Rename old files, then the new ones, and remove the old ones. Undo all if a step fails."""
    kept = [(path, path.with_name(f".xbridge-{secrets.token_hex(4)}.old")) for path in old]
    steps = [*kept, *new]
    done = False
    try:
        for before, after in steps:
            before.replace(after)
        done = True
    finally:
        for before, after in () if done else reversed(steps):
            if after.exists() and not before.exists():
                after.replace(before)
    _remove([path for _, path in kept])


def _remove(paths: Sequence[Path]) -> None:
    """Remove files, even if an interrupt comes meanwhile. The program ignores a second one."""
    try:
        for path in paths:
            path.unlink(missing_ok=True)
    except KeyboardInterrupt:
        _remove(paths)
        raise
