"""The links in the metadata, which are those of the repository that builds the package.

GitHub Actions names that repository in the environment. Elsewhere, such as on a laptop, no address is known.
Then the metadata has no URLs, the README of the package has the text of its relative links without the links,
and the build says so. A wheel that is built from an sdist takes both from the sdist.
"""

import os
import sys
from pathlib import Path
from typing import Any

from hatch_fancy_pypi_readme import hooks
from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = r"(?!https?:|#|mailto:)"
"""The start of a link's target that is a path in the repository."""


class LinksMetadataHook(MetadataHookInterface):
    """Sets `project.urls` and `project.readme`, which are dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Write both, with absolute links if the repository is known."""
        repository = repository_url()
        if repository is None:
            sys.stderr.write("No repository is named in the environment: building without URLs and links\n")
            links = [("!" + link("[^)]*"), ""), (link("[^)]*"), r"\1")]
        else:
            metadata["urls"] = urls(repository)
            place = f"{repository}/%s/{ref()}"
            links = [
                ("!" + link("([^)]*)"), rf"![\1]({place % 'raw'}/\2)"),
                (link("([^)]*)"), rf"[\1]({place % 'blob'}/\2)"),
            ]
        config = {
            "content-type": "text/markdown",
            "fragments": [{"path": str(Path(self.root, "README.md"))}],
            "substitutions": [{"pattern": pattern, "replacement": text} for pattern, text in links],
        }
        hooks.FancyReadmeMetadataHook(self.root, config).update(metadata)


def link(target: str) -> str:
    """Return the pattern of a Markdown link with a relative target; its text is the first group."""
    return rf"\[([^\]]*)\]\({RELATIVE}{target}\)"


def urls(repository: str) -> dict[str, str]:
    """Return the URLs of the project, by the labels that the index knows."""
    owner, name = repository.rsplit("/", 2)[1:]
    return {
        "Documentation": f"https://{owner}.github.io/{name}/",
        "Source": repository,
        "Changelog": f"{repository}/blob/{ref()}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def repository_url() -> str | None:
    """Return the address of the repository that runs the build, as GitHub Actions names it."""
    try:
        return f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}"
    except KeyError:
        return None


def ref() -> str:
    """Return the tag that is built, or the default branch."""
    return os.environ["GITHUB_REF_NAME"] if os.environ.get("GITHUB_REF_TYPE") == "tag" else "HEAD"
