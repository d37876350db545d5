"""`convert SRC DST`: exact conversion of an array file, in bounded memory, with an atomic write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from xbridge.errors import Chained
from xbridge.extend import DTYPES
from xbridge.files.errors import RefusedError, check_source, unreadable_error, write_error
from xbridge.files.formats import (
    ALL,
    SUFFIXES,
    Content,
    Format,
    Reading,
    add_reading,
    format_of,
    read_file,
)
from xbridge.files.output import print_arrays
from xbridge.files.write import replace_file, resolve

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from xbridge.files.fit import Allowed

HELP = "convert an array file to another format"
DESCRIPTION = f"""\
Convert an array file to the format that the name of the target ends in: {", ".join(SUFFIXES)}.

Every value, dtype, shape and name is kept; if that is not possible, nothing is written and one line says why.
Files may be larger than memory. The target is written atomically."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument("source", type=Path, metavar="SRC", help="the file to read")
    parser.add_argument("target", type=Path, metavar="DST", help="the file to write")
    add_reading(parser, "SRC")
    parser.add_argument("--force", action="store_true", help="replace DST if it exists")
    parser.add_argument("--array", metavar="NAME", help="convert only this array; .npy drops its name")
    words = "take the arrays of all nested dicts and lists of a .pt file, named by their keys joined by dots"
    parser.add_argument("--flatten", action="store_true", help=words)
    words = "leave out, and list, numbers, strings and other values that are not arrays"
    parser.add_argument("--skip-other", action="store_true", help=words)
    words = "leave out the array or value of this name; repeat it to leave out others"
    parser.add_argument("--skip", action="append", default=[], metavar="NAME", help=words)
    words = "write tensors that share memory as separate arrays"
    parser.add_argument("--untie", action="store_true", help=words)
    words = "cast arrays of one dtype to another; an error if a value would change"
    parser.add_argument("--cast", action="append", default=[], metavar="FROM=TO", help=words)
    words = "let --cast round floats to the nearest one that the dtype has"
    parser.add_argument("--round", action="store_true", help=words)
    parser.add_argument("--drop-metadata", action="store_true", help="drop the text of a .safetensors file")


def run(asked: Namespace) -> int:
    """Convert a file, and print its arrays."""
    content = convert(asked)
    print_arrays(content, {"source": str(asked.source), "target": str(asked.target)}, as_json=asked.json)
    return 0


def convert(asked: Namespace) -> Content:
    """Write the file, and return its content."""
    from xbridge.files.fit import fit_content  # noqa: PLC0415 -- `--help` does not need it

    check_source(asked.source)
    writer, allowed = format_of(asked.target), _read_options(asked)
    target = resolve(asked.target, [asked.source], force=asked.force)
    how = ALL
    if asked.array is None:
        how = Reading(flatten=asked.flatten, skip_other=asked.skip_other, untie=asked.untie)
    how = how._replace(at=asked.at, skip=asked.skip)
    before = {asked.source: _identify(asked.source)}
    read = read_file(asked.source, how)
    before |= {shard: _identify(shard) for shard in read.files}
    resolve(asked.target, [*before], force=asked.force)
    if not read.arrays and not read.refused and (asked.skip or read.others):
        raise write_error(target, "no array is left, and the file would be empty")
    index = target.with_name(f"{target.name}.index.json")
    if index.exists() and not (asked.force or any(map(index.samefile, before))):
        reason = f"{index} exists, and would be another model of the same name"
        raise write_error(target, reason, "another name, or --force")
    content = fit_content(read, writer, allowed, target)
    with replace_file(target, force=asked.force) as part:
        _write(part, writer, content, target)
        for path, facts in before.items():
            if not path.exists() or _identify(path) != facts:
                raise unreadable_error(path, "it was replaced or written while it was read")
    return content


def _read_options(asked: Namespace) -> Allowed:
    from xbridge.files.fit import RAW, Allowed  # noqa: PLC0415 -- `--help` does not need it

    if asked.round and not asked.cast:
        raise RefusedError.build("round", "there is no --cast", "--cast float64=float32 --round")
    casts: dict[str, str] = {}
    for one in asked.cast:
        before, _, after = one.partition("=")
        if "=" not in one:
            raise RefusedError.build(f"cast {one!r}", "it has no '='", "--cast float64=float32")
        for word in (before, after)[bool(RAW.fullmatch(before)) :]:
            if word not in DTYPES:
                raise RefusedError.build(f"cast {one!r}", f"{word!r} is not the name of a dtype")
        if casts.setdefault(before, after) != after:
            reason = f"another --cast makes {before} {casts[before]}"
            raise RefusedError.build(f"cast {one!r}", reason, f"--cast {one} alone")
    return Allowed(asked.array, casts, asked.round, asked.drop_metadata)


def _identify(path: Path) -> tuple[int, ...]:
    """Return facts about a file, one of which changes if it is written or replaced."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _write(part: Path, writer: Format, content: Content, target: Path) -> None:
    """Write a file, and check that the format's own library finds all arrays in it."""
    with Chained(lambda error: error if isinstance(error, OSError) else write_error(target, error)):
        writer.write(part, content)
    with Chained(lambda error: write_error(target, f"the new file cannot be read back: {error}")):
        found = set(writer.reread(part))
    for x in content.arrays:
        if (x.name if writer.names else None, x.dtype, x.shape) not in found:
            raise write_error(target, f"the new file cannot be read back: it does not give {x.label} back")
