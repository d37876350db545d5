"""A metaclass that corrects ``with policy:`` and ``with record:``, which lack the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbridge.errors import CallError


class Statement(type):
    """The metaclass of `policy` and `record`: a `with` block of the class itself is an error with a hint."""

    if TYPE_CHECKING:
        pass  # for a type checker, the class is no context
    else:

        def __enter__(cls) -> None:
            """Raise the error."""
            example = "(copies='raise')" if cls.__name__ == "policy" else "()"
            reason = "it is a class, and a block needs an object of it"
            raise CallError.build(f"enter {cls.__name__}", reason, f"{cls.__name__}{example}")

        def __exit__(cls, *_: object) -> None:
            """Do nothing: no block is entered."""
