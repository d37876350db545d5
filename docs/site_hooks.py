"""Hooks of MkDocs: the pages of the site that are not in `docs`, and the links between pages.

The pages are written for the repository, where a link is a path to a file. On the site, a link to a page of
the repository is a link to that page, and a link to any other file or folder is a link to a page that shows
it. The README is the landing page. The search leaves out files and long lists. `reference.md` lists the
public names; each gets a page of its docstring.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote
from xml.etree.ElementTree import Element

import griffe
from check import LINK, ROOT, SPAN, read
from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

OTHERS = ("*.md", "benchmarks/*.md")
"""The pages of the site that are not in `docs`."""
ROW = re.compile(r"^\| `([\w.]+)(?<!Error)(?<!Warning)` \|", re.MULTILINE)
"""A row of the tables of `reference.md`; errors are described in `errors.md`."""
FENCE = re.compile(r"^( *`{3,}\w+) +(?:file=(\S+)|no-run|run)$", re.MULTILINE)
"""The opening of a block that `check.py` runs in its own way, or not."""
TABLE = re.compile(r"^\| `(\w+)` \| promise \|\n(?:\|.*\n)+", re.MULTILINE)
"""The table of an option in `contract.md`."""
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".yml": "yaml", ".txt": "text"}
"""The files that a page of a folder lists, and the language of each for the highlighter."""
CODE = re.compile(r"<(a|pre|h\d|button)\b.*?</\1>|<code>@?([\w.]+)</code>", re.DOTALL)
"""Parts of a page without links to the reference, or a name in code that can become one."""


NOT_SEARCHED = (
    *("source/", "tests/", "examples/", "benchmarks/"),
    *("found-bugs.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md"),
)
"""Where pages begin that the search leaves out: files of the repository, and long lists."""

FOR_DEVELOPERS = (
    "CONTRIBUTING.md",
    "add-a-backend.md",
    "adoption/",
    "how-it-works.md",
    "maintain.md",
    "principles.md",
    "quality.md",
)
"""Pages that the search shows after those for users."""

CENTRAL = (
    *("README.md", "get-started.md", "contract.md", "functions.md", "transfers.md", "explain.md"),
    *("how-to/migrate.md", "how-to/scikit-learn-and-pandas.md"),
    *("reference/to_numpy.md", "reference/to_torch.md"),
)
"""Pages that explain a subject, which the search shows before those that mention it."""

TASKS = ("how-to/", "command-line.md", "trees.md")
"""Pages about one use, which come after those about the subject."""

BOOSTS = {FOR_DEVELOPERS: 0.1, ("reference/testing.", "glossary.md"): 0.3, CENTRAL: 4, TASKS: 2}
"""The weights of pages in the search, by the beginnings of their names; the others have 1."""

API = griffe.load("xbridge", search_paths=[ROOT / "src"])
"""The package as it is written; it is not imported."""
URIS: dict[str, str] = {}
"""A path in the repository -> the page or the file of the site that shows it."""
ERRORS = [name for name in API["errors"].exports or () if name.endswith("Error")]
NAMES: dict[str, str] = {}
"""A public name -> the page of its docstring."""
KIT_PAGES = ("test-your-library.md", "reference.md")
"""Where a name in code, such as `arrays`, is a strategy of the test kit."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read the reference, put the pages of folders into the navigation, and rewrite links."""
    groups = reference()
    NAMES.update((name, f"reference/{name}.md") for names in groups.values() for name in names)
    api = [{heading: [NAMES[name] for name in names]} for heading, names in groups.items()]
    config.nav = [*expanded(config.nav or [], ["reference.md", *api])]
    config.markdown_extensions.append(LINKS)  # type: ignore[arg-type] # Markdown takes instances too
    return config


def reference() -> dict[str, list[str]]:
    """Return the public names below each heading of the reference."""
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    parts = [part.partition("\n") for part in text.split("\n## ")[1:]]
    return {heading: names for heading, _, rows in parts if (names := ROW.findall(rows))}


def expanded(entries: list[object], api: list[object]) -> Iterator[object]:
    """Yield the entries of a navigation with the pages of folders, and with the pages of the reference."""
    for entry in entries:
        if isinstance(entry, dict):
            ((title, inside),) = entry.items()
            found = [*expanded(inside if isinstance(inside, list) else [inside], api)]
            if found:
                yield {title: inside if isinstance(inside, str) and found == [inside] else found}
        elif entry == "reference.md":
            yield from api
        elif isinstance(entry, str) and entry.endswith("/"):
            home = ROOT if entry == "benchmarks/" else ROOT / "docs"
            pages = sorted(
                (home / entry).glob("*.md"), key=lambda page: (page.name != "README.md", page.name)
            )
            yield from (page.relative_to(home).as_posix() for page in pages)
        else:
            yield entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside `docs`, those of the reference, and all that pages link to."""
    URIS.update((f"docs/{file.src_uri}", file.src_uri) for file in files if not file.src_uri.endswith(".py"))
    waiting = [ROOT / path for path in URIS if path.endswith(".md")]
    for page in sorted(page for pattern in OTHERS for page in ROOT.glob(pattern)):
        waiting += added(files, config, page, InclusionLevel.INCLUDED)
    while waiting:
        for target in targets(waiting.pop()):
            waiting += added(files, config, target, InclusionLevel.NOT_IN_NAV)
    contract = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    tables = {found[1]: found[0] for found in TABLE.finditer(contract)}
    for name, uri in NAMES.items():
        added(files, config, source_of(name), InclusionLevel.NOT_IN_NAV)
        files.append(File.generated(config, uri, content=described(name, tables)))
    return files


def targets(page: Path) -> Iterator[Path]:
    """Yield the files and folders of the repository that a page links to."""
    for first, second in LINK.findall(SPAN.sub("", read(page)[1])):
        path = unquote(first or second).partition("#")[0]
        there = (page.parent / path).resolve()
        if path and there.exists() and there.is_relative_to(ROOT):
            yield there


def added(files: Files, config: MkDocsConfig, path: Path, level: InclusionLevel) -> list[Path]:
    """Add a file or a folder of the repository to the site, and return the new pages that have links."""
    name = path.relative_to(ROOT).as_posix()
    if name in URIS:
        return []
    if path.is_dir() and (path / "README.md").exists():
        pages = added(files, config, path / "README.md", level)
        URIS[name] = URIS[f"{name}/README.md"]
        return pages
    if path.is_dir():
        inside = [one for one in sorted(path.rglob("*")) if one.suffix in LANGUAGES]
        for one in inside:
            added(files, config, one, level)
        URIS[name] = f"source/{name}/index.md"
        rows = [f"- [{one.relative_to(path)}]({one.relative_to(path).as_posix()}.md)" for one in inside]
        file = File.generated(config, URIS[name], content="\n".join([f"# {name}\n", *rows]), inclusion=level)
    elif path.suffix in (".md", ".svg", ".png"):
        URIS[name] = name
        file = File.generated(config, name, abs_src_path=str(path), inclusion=level)
    else:
        URIS[name] = f"source/{name}.md"
        text = path.read_text(encoding="utf-8")
        shown = f"# {name}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n"
        file = File.generated(config, URIS[name], content=shown, inclusion=level)
    files.append(file)
    return [path] if path.suffix == ".md" else []


def source_of(name: str) -> Path:
    """Return the module in which a public name is defined."""
    return Path(str(API[name].filepath))


def described(name: str, tables: dict[str, str]) -> str:
    """Return the page of a public name: its docstring, its source, and the tables of its options."""
    thing = API[name]
    path = source_of(name).relative_to(ROOT).as_posix()
    source = f"Source: [{path}](../{URIS[path]})"
    parts = [f"---\ntitle: {name}\n---", f"::: xbridge.{name}", source]
    taken = [option for option in tables if thing.is_function and option in thing.parameters]
    if taken:
        parts += ["## Options", "Each means the same in every call; see [the contract](../contract.md)."]
    for option in taken:
        parts += [f"### {option}", re.sub(r"\]\((?=[\w-]+\.md)", "](../", tables[option])]
    return "\n\n".join(parts)


class Links(Treeprocessor):
    """Turn paths in the repository into paths on the site, before MkDocs checks them."""

    def __init__(self, md: Markdown, uri: str) -> None:
        """Take the page of the site whose links are meant."""
        super().__init__(md)
        self.uri = uri
        self.path = next((path for path, found in URIS.items() if found == uri and path.endswith(".md")), "")

    def run(self, root: Element) -> None:
        """Rewrite the links and the pictures, if the page is in the repository."""
        for element in root.iter() if self.path else ():
            key = "src" if element.tag == "img" else "href"
            path, mark, anchor = element.get(key, "").partition("#")
            there = posixpath.normpath(posixpath.join(posixpath.dirname(self.path), path))
            if path and there in URIS:
                to = posixpath.relpath(URIS[there], posixpath.dirname(self.uri) or ".")
                element.set(key, f"{to}{mark}{anchor}")


class RepositoryLinks(Extension):
    """The extension of Markdown that runs `Links` on the page that is being rendered."""

    uri = ""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 -- Markdown calls it so
        """Register the rewriting between that of inline text and that of MkDocs, which is at 0."""
        md.treeprocessors.register(Links(md, self.uri), "repository_links", 5)


LINKS = RepositoryLinks()


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Note the page that is rendered next, and write the words behind the language of a block for MkDocs."""
    LINKS.uri = page.file.src_uri
    if page.file.src_uri.startswith(NOT_SEARCHED) and page.file.src_uri != "benchmarks/README.md":
        page.meta["search"] = {"exclude": True}
    elif boosts := [boost for pages, boost in BOOSTS.items() if page.file.src_uri.startswith(pages)]:
        page.meta["search"] = {"boost": boosts[0]}
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # which is empty there, beside the tabs
    return FENCE.sub(lambda found: found[1] + (f' title="{found[2]}"' if found[2] else ""), markdown)


def on_page_content(html: str, page: Page, files: Files, **_: object) -> str:
    """Link public names in code to their pages, and errors to their causes."""

    def linked(found: re.Match[str]) -> str:
        uri, _, anchor = link_of(found[2] or "", page.file.src_uri).partition("#")
        file = files.get_file_from_path(uri) if uri else None
        if file is None or file is page.file:
            return found[0]
        url = get_relative_url(file.url, page.url)
        return f'<a href="{url}{anchor and "#"}{anchor}">{found[0]}</a>'

    return CODE.sub(linked, html)


def link_of(code: str, uri: str) -> str:
    """Return the page, and the anchor, of a name in code on a page; empty if it has none there."""
    name = code.removeprefix("xbridge.")
    if name in ERRORS:
        return f"errors.md#{name.lower()}"
    kit = ("testing.", "testing.strategies.") if uri in KIT_PAGES else ("testing.",)
    return next((NAMES[before + name] for before in ("", *kit) if before + name in NAMES), "")
