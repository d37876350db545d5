"""Open the pages of the built site in a headless Chromium, and follow the links between them.

A page must have a heading, fit a telephone, and ask for nothing outside the site, without an error in the
console. The search must find what users look for, the dark mode must stay switched on, and the versions must
be there. Pictures of the landing page are written beside the site, to be looked at.
"""

import argparse
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Route, sync_playwright

BUILT = Path(__file__).resolve().parents[1] / "build" / "site"
BROWSERS = ("chromium", "google-chrome")
PHONE, DESK = 390, 1280
WANTED = {
    "CopyError": "errors/.*#copyerror",
    "pip": r"dev/(\?h=\w+)?#install",
    "install": r"dev/(\?h=\w+)?#install",
    "masked array": "contract/",
    "sparse": "contract/",
    "bfloat16": "contract/",
    "gpu": "transfers/",
    "read-only": "contract/.*#read-only-results",
    "copy": "contract/.*#copy",
    "gradient": "functions/",
    "pandas": "how-to/scikit-learn-and-pandas/",
    "environment": "how-to/reinforcement-learning/",
    "byte order": "contract/",
    "float64 jax": "how-to/jax-and-torch/",
    "dlpack": "contract/",
    "ctrl-c": "command-line/",
    "zero copy": "contract/.*#copy",
    "pinned memory": "transfers/",
}
"""Words that users look for, and the page that must be among the first three pages found."""
WANTED_FIRST = {
    "numpy to torch": "reference/to_torch/",
    "from_numpy": "how-to/migrate/",
    "detach cpu numpy": "how-to/migrate/",
    "categorical": "how-to/scikit-learn-and-pandas/",
    "migrate": "how-to/migrate/",
    "codemod": "how-to/migrate/",
}
"""Words that belong to one page, which must be the first one found."""
CUT_OFF = """[...document.querySelectorAll("article pre > code")].some(code =>
    code.getBoundingClientRect().top < innerHeight && code.scrollWidth > code.clientWidth)"""
"""Whether code of the first screen is wider than its block."""
SOURCE = "source"
"""The folder of the pages that show a file of the repository. They have one form, and are not opened."""


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that prints nothing."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine, and yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


def main() -> None:
    """Check the site; print the faults, and fail if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("site", nargs="?", type=Path, default=BUILT, help="the folder with versions.json")
    asked = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        sys.exit("cannot open the site: there is no Chromium here; try apt-get install chromium")
    if not (asked.site / "versions.json").exists():
        sys.exit(f"cannot open the site: {asked.site} has none; try make site")
    with served(asked.site) as root, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        context = chromium.new_context(viewport={"width": PHONE, "height": 844}, color_scheme="light")
        faults = watched(context, root)
        tab = context.new_page()
        pages, wrong = visited(tab, root, asked.site)
        faults += cut_off(tab, f"{root}dev/")
        tab.set_viewport_size({"width": DESK, "height": 900})
        faults += [*wrong, *searched(tab, f"{root}dev/"), *switched(tab, f"{root}dev/")]
        pictures(chromium, f"{root}dev/", asked.site.parent / "site-pictures")
        chromium.close()
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{pages} pages in a browser, {len(faults)} faults")
    sys.exit(bool(faults))


def visited(tab: Page, root: str, site: Path) -> tuple[int, list[str]]:
    """Open all pages of a site; return their number, and the faults of their form and their links."""
    faults: list[str] = []
    links: dict[str, set[str]] = {}
    anchors: dict[str, set[str]] = {}
    for path in sorted(site.glob("*/**/index.html")):
        if SOURCE in path.parts:
            continue
        url = root + path.relative_to(site).as_posix().removesuffix("index.html")
        faults += opened(tab, url)
        links[url] = set(tab.eval_on_selector_all("a[href]", "all => all.map(one => one.href)"))
        anchors[url] = {"", *tab.eval_on_selector_all("[id]", "all => all.map(one => one.id)")}
    faults += dead(links, anchors, root, site)
    return len(links), faults


def watched(context: BrowserContext, root: str) -> list[str]:
    """Return a list that gets errors of scripts, and requests that leave the site, which are stopped."""
    faults: list[str] = []

    def noted(said: ConsoleMessage) -> None:
        if said.type == "error":
            faults.append(f"{said.page and said.page.url}: {said.text}")

    def stopped(route: Route) -> None:
        faults.append(f"{route.request.frame.url}: asks for {route.request.url}")
        route.abort()

    context.on("console", noted)
    context.on("weberror", lambda error: faults.append(f"{error.page and error.page.url}: {error.error}"))
    context.route(lambda url: not url.startswith((root, "data:", "blob:")), stopped)
    return faults


def opened(tab: Page, url: str) -> Iterator[str]:
    """Open a page, and yield the faults of its form."""
    tab.goto(url)
    headings = tab.locator("article h1").all_inner_texts()
    if not "".join(headings).strip("¶ \n"):
        yield f"{url}: has no heading"
    wide = tab.evaluate("document.documentElement.scrollWidth")
    if wide > PHONE:
        yield f"{url}: is {wide} pixels wide on a screen of {PHONE}"


def cut_off(tab: Page, home: str) -> Iterator[str]:
    """Yield a fault if a telephone shows a part only of the code on the first screen."""
    tab.goto(home)
    if tab.evaluate(CUT_OFF):
        yield f"{home}: lines of code on the first screen are cut off"


def dead(links: dict[str, set[str]], anchors: dict[str, set[str]], root: str, site: Path) -> Iterator[str]:
    """Yield the links within the site that have no target."""
    for page, targets in links.items():
        for target in sorted(targets):
            url, _, anchor = target.partition("#")
            if url in anchors:
                if unquote(anchor) not in anchors[url]:
                    yield f"{page}: {target}: no such anchor"
            elif url.startswith(root):
                there = site / url.removeprefix(root)
                if not (there / "index.html" if there.is_dir() else there).is_file():
                    yield f"{page}: {target} does not exist"


def searched(tab: Page, home: str) -> Iterator[str]:
    """Search for words, and yield a fault if the page about them is not among the first results."""
    for words, wanted in {**WANTED, **WANTED_FIRST}.items():
        tab.goto(f"{home}?q={quote(words)}")
        found = tab.locator(".md-search-result__item")
        found.first.wait_for()
        best = found.all()[: 1 if words in WANTED_FIRST else 3]
        first = [item.locator(".md-search-result__link").all() for item in best]
        links = [(link.get_attribute("href") or "") for item in first for link in item]
        if not any(re.search(f"{wanted}$" if "#" in wanted else wanted, link) for link in links):
            yield f"{home}: the search for {words} finds {links}"


def switched(tab: Page, home: str) -> Iterator[str]:
    """Switch to the dark mode, and yield a fault if the next page is not dark."""
    tab.goto(home)
    tab.locator("label[title='Switch to dark mode']").click()
    tab.goto(f"{home}contract/")
    if tab.locator("body").get_attribute("data-md-color-scheme") != "slate":
        yield f"{home}: the dark mode does not stay on"
    if tab.locator(".md-version__current").inner_text().strip() != "dev":
        yield f"{home}: the versions are not shown"


def pictures(chromium: Browser, home: str, folder: Path) -> None:
    """Write pictures of the landing page, as wide as a desk's screen and as a telephone."""
    folder.mkdir(parents=True, exist_ok=True)
    shown: list[tuple[int, Literal["light", "dark"]]] = [(DESK, "light"), (DESK, "dark"), (PHONE, "light")]
    for width, scheme in shown:
        tab = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        tab.goto(home)
        tab.screenshot(path=folder / f"landing-{width}-{scheme}.png", full_page=True, animations="disabled")
        tab.close()


if __name__ == "__main__":
    main()
