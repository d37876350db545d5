"""`convert SRC DST`: exact conversion of an array file, in bounded memory, with an atomic write."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, cast

from xbridge._core.dtypes import DTYPES
from xbridge._core.text import printable
from xbridge.errors import Chained
from xbridge.files.errors import RefusedError, check_source
from xbridge.files.formats import (
    ALL,
    FORMATS,
    SUFFIXES,
    Content,
    Format,
    Reading,
    add_at,
    format_of,
    read_file,
)
from xbridge.files.formats.sources import Sources
from xbridge.files.output import print_arrays, progress

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping, Sequence

    from xbridge.files.formats.sink import Sink
    from xbridge.files.formats.stored import Stored

HELP = "convert an array file to another format"
DESCRIPTION = f"""\
Convert an array file to the format that the name of the target ends in: {", ".join(SUFFIXES)}.

Every value, dtype, shape and name is kept; if that is not possible, nothing is written and one line says why.
Files may be larger than memory. The target is written atomically."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument("source", type=Path, metavar="SRC", help="the file to read")
    parser.add_argument("target", type=Path, metavar="DST", help="the file to write")
    parser.add_argument(
        "--from-format", choices=FORMATS, help="read SRC in this format, whatever its name ends in"
    )
    parser.add_argument("--force", action="store_true", help="replace DST if it exists")
    parser.add_argument("--array", metavar="NAME", help="convert only this array; .npy drops its name")
    add_at(parser)
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
    words = "let --cast round values to the nearest one that the dtype has"
    parser.add_argument("--round", action="store_true", help=words)
    words = "change axis order and byte order if DST cannot hold them; values never change"
    parser.add_argument("--relayout", action="store_true", help=words)
    words = "write several .safetensors files of at most this size, such as 5GB, and their index"
    parser.add_argument("--shard", metavar="SIZE", help=words)
    words = "read a .pt file that torch wrote without checksums"
    parser.add_argument("--no-checksum", action="store_true", help=words)
    parser.add_argument("--drop-metadata", action="store_true", help="drop the text of a .safetensors file")
    parser.add_argument("--quiet", action="store_true", help="print only errors")


def run(asked: Namespace) -> int:
    """Convert a file, and print its arrays."""
    content, files = convert(asked)
    if asked.quiet:
        return 0
    source, target = str(asked.source), str(asked.target)
    print_arrays(content, {"source": source, "target": target, **files}, as_json=asked.json)
    if files and not asked.json:
        print(f"\nthe index of the shards is {printable(files['index'])}")
    return 0


def convert(asked: Namespace) -> tuple[Content, dict[str, str]]:
    """Write the file. Return its content, and the name of the index if there is one."""
    from xbridge.files.atomic_write import find_obsolete_file, new_file, replace_files, resolve  # noqa: PLC0415 -- `--help` does not need it
    from xbridge.files.compatibility import Allowed, fit_content  # noqa: PLC0415 -- `--help` does not need it
    from xbridge.files.formats.shards import format_index, index_name, read_size  # noqa: PLC0415 -- `--help` does not need it
    from xbridge.files.formats.sink import Sink  # noqa: PLC0415 -- NumPy, which `--help` does not need

    source: Path = asked.source
    check_source(source)
    writer = format_of(asked.target)
    target = resolve(asked.target, source, force=asked.force)
    allowed = Allowed(
        asked.array,
        casts(asked.cast),
        asked.round,
        relayout=asked.relayout,
        drop_metadata=asked.drop_metadata,
    )
    if asked.round and not asked.cast:
        raise RefusedError.build("round", "there is no --cast", "--cast float64=float32 --round")
    most = None if asked.shard is None else read_size(asked.shard)
    has_index = asked.target.suffix.lower() == ".safetensors"  # the suffix of a link counts, not of its file
    if most and not has_index:
        reason, hint = "only .safetensors files have an index of shards", f"{asked.target.stem}.safetensors"
        raise RefusedError.build(f"write shards of {asked.target}", reason, hint)
    how = Reading(not asked.no_checksum, asked.at, asked.flatten, asked.skip_other, asked.untie, asked.skip)
    if asked.array is not None:
        how = ALL._replace(checksums=how.checksums, at=how.at, skip=how.skip)

    with Sources() as opened:
        read = read_file(source, asked.from_format, how, opened)
        sources = (source, *read.files)
        resolve(asked.target, *sources, force=asked.force)
        content = fit_content(read, writer, allowed, target)
        _try_names(writer, content, target)
        files = _place_arrays(content, asked.target, target, most)
        several = len(files) > 1
        real = [resolve(file, *sources, force=asked.force) for file in files] if several else [target]
        bar = progress(source.name, sum(x.nbytes for x in content.arrays))
        # A single file beside the index of an old one would look like two models of one name.
        other = asked.target if several else index_name(asked.target)
        gone = find_obsolete_file(other, asked.target, *sources, force=asked.force) if has_index else []
        with replace_files(*real, gone=gone, force=asked.force) as parts, bar as advance:
            for part, file, arrays in zip(parts, real, files.values(), strict=True):
                with new_file(part, file) as new:
                    if arrays is None:
                        new.write(format_index(files))
                        continue
                    shard = content._replace(arrays=arrays)
                    with Sink(new, advance) as sink, Chained(partial(_stopped_error, asked.target)):
                        writer.write(sink, shard, target.parent)
                    new.flush()
                    _read_back(part, writer, shard, target)
            opened.compare()
    left_out = () if asked.array is not None else read.others
    return content._replace(others=left_out), {"index": str([*files][-1])} if several else {}


def _place_arrays(
    content: Content, name: Path, target: Path, most: int | None
) -> Mapping[Path, Sequence[Stored] | None]:
    """Return the arrays of each file to write; None for an index, which is the last of several."""
    from xbridge.files.formats.shards import name_shards, split  # noqa: PLC0415 -- it imports NumPy

    shards = list(split(content.arrays, most)) if most else [content.arrays]
    if len(shards) == 1:
        return {target: content.arrays}
    return dict(zip(name_shards(name, len(shards)), [*shards, None], strict=True))


def casts(asked: Sequence[str]) -> dict[str, str]:
    """Return the casts that `FROM=TO` arguments name."""
    found: dict[str, str] = {}
    for one in asked:
        before, _, after = one.partition("=")
        if before not in DTYPES or after not in DTYPES:
            words = [_nearest_dtype(word) for word in (before, after) if word]
            reason = f"the dtypes are {', '.join(DTYPES)}"
            if len(words) < 2:
                reason = "a cast names two dtypes"
                words = ["bfloat16", "float32"] if words in ([], ["float32"]) else ["float32", *words]
            raise RefusedError.build(f"cast {one!r}", reason, f"--cast {'='.join(words)}")
        if found.setdefault(before, after) != after:
            reason = f"another --cast makes {before} {found[before]}"
            raise RefusedError.build(f"cast {one!r}", reason, f"--cast {one} alone")
    return found


def _nearest_dtype(word: str) -> str:
    """Return the dtype that a word such as `fp32` means, or the most similar one."""
    short = re.fullmatch("(bf|fp?|i|u|c)([0-9]+)", word)
    full = _FULL[short[1]] + short[2] if short else word
    return get_close_matches(_FULL.get(full, full), DTYPES, 1, 0)[0]


_FULL = {"bf": "bfloat", "f": "float", "fp": "float", "i": "int", "u": "uint", "c": "complex"} | {
    "half": "float16",
    "double": "float64",
}


def _try_names(writer: Format, content: Content, target: Path) -> None:
    """Write a small file with these names to memory; raise if the format's own library reads other names."""
    from xbridge.files.formats.stored import number_arrays  # noqa: PLC0415 -- NumPy, which `--help` does not need

    if not writer.names or [x.name for x in content.arrays] == [None]:
        return
    names = [str(x.name) for x in content.arrays]
    file = BytesIO()
    with Chained(partial(_lost_error, target)):
        writer.write(cast("Sink", file), Content(number_arrays(names), content.metadata), target.parent)
        found = writer.numbers(file.getvalue())
        for number, name in enumerate(names):
            given = int(found[name]) if name in found else None
            if given != number:
                other = "nothing" if given is None else f"the array {names[given]!r}"
                raise _lost_error(target, f"for the name {name!r} its own library gives {other}")


def _read_back(part: Path, writer: Format, content: Content, target: Path) -> None:
    """Check that the format's own library finds all arrays in the file that was written."""
    with Chained(partial(_lost_error, target)):
        found = set(writer.reread(part))
    for x in content.arrays:
        if (x.name if writer.names else None, x.dtype, x.shape) not in found:
            raise _lost_error(target, f"the file does not give {x.label} back")


def _stopped_error(target: Path, error: Exception) -> Exception:
    """Return the error of a failed write, which says what is on the disk now."""
    return error if isinstance(error, OSError) else _unwritable_error(target, error)


def _lost_error(target: Path, reason: object) -> RefusedError:
    return _unwritable_error(target, f"the new file cannot be read back: {reason}")


def _unwritable_error(target: Path, reason: object) -> RefusedError:
    return RefusedError.build(f"write {target}", str(reason), "another format, or other names")
