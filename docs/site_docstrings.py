"""An extension of griffe, which reads docstrings for the site: names described together stay together."""

import re

import griffe

TOGETHER = re.compile(r"^\*{0,2}\w+(?:, \*{0,2}\w+)+(?= :|$)", re.MULTILINE)
"""The names of an entry `copy, grad : type`; griffe would describe each, with the type of the first."""


class Together(griffe.Extension):
    """Join such names by spaces that do not break, at which griffe does not part them."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Change the docstring of a module, a class, a function or an attribute."""
        if obj.docstring:
            obj.docstring.value = TOGETHER.sub(joined, obj.docstring.value)


def joined(names: re.Match[str]) -> str:
    """Return names with spaces that do not break between them."""
    return names[0].replace(", ", ",\N{NO-BREAK SPACE}")
