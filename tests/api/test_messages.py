"""What errors say, word for word: `messages.txt` has every form, with a call that raises it.

`pytest tests/api/test_messages.py --update-messages` writes the file anew. Other tests look at the class of
an error, its reason and its hint.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from inside import DTYPES

import xbridge
from xbridge.backends import INDEX

if TYPE_CHECKING:
    from types import ModuleType

# Half of what is tried of torch here it calls a prototype, or deprecates.
pytestmark = [
    pytest.mark.usefixtures("own_registry"),
    pytest.mark.filterwarnings("ignore:(torch.quantize|.*[Nn]ested|ComplexHalf):UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]

SNAPSHOT = Path(__file__).with_name("messages.txt")
CALLS = {"numpy": "message_calls", "torch": "message_calls_torch", "jax": "message_calls_jax"}
"""The heading of a part -> the module whose names its calls use."""


def placeholders() -> dict[str, str]:
    """Parts of messages that hang on what is installed, and what stands for them in the file."""
    found = {
        "<backends>": ", ".join(INDEX),
        "<dtypes>": ", ".join(DTYPES),
        "<unhashable in a tuple>": unhashable(),
    }
    if find_spec("torch"):
        import torch

        devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        found["<devices of torch>"] = "only " + ", ".join(devices)
    return found


def unhashable() -> str:
    """What Python says of a key with an array of bytes in it, in words that depend on the version."""
    known: dict[tuple[bytearray], None] = {}
    with pytest.raises(TypeError) as caught:
        known.get((bytearray(),))
    return str(caught.value)


def parts() -> dict[str, list[tuple[str, str]]]:
    """The calls and messages of the file, by heading."""
    found: dict[str, list[tuple[str, str]]] = {}
    for part in SNAPSHOT.read_text("utf-8").split("\n== ")[1:]:
        heading, _, body = part.partition("\n")
        found[heading] = []
        for case in filter(None, body.strip().split("\n\n")):
            call, _, message = case.partition("\n    ")
            found[heading].append((call, message))
    return found


def said(call: str, names: ModuleType) -> str:
    """The class and the message of the error that a call raises."""
    with pytest.raises(xbridge.XBridgeError) as caught:
        eval(call, vars(names))
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize(
    ("heading", "call"), [(heading, call) for heading in CALLS for call, _ in parts()[heading]]
)
def test_messages__match_the_snapshot(heading: str, call: str, request: pytest.FixtureRequest) -> None:
    """Every error message is the one recorded in `messages.txt`."""
    pytest.importorskip(heading)
    found = said(call, import_module(CALLS[heading]))
    if request.config.getoption("update_messages"):
        update(call, found)
    message = dict(parts()[heading])[call]
    for sign, words in placeholders().items():
        message = message.replace(sign, words)
    assert found == message


def update(call: str, message: str) -> None:
    """Put a message into the file."""
    for sign, words in placeholders().items():
        message = message.replace(words, sign) if words else message
    text = SNAPSHOT.read_text("utf-8")
    (old,) = (before for cases in parts().values() for known, before in cases if known == call)
    SNAPSHOT.write_text(text.replace(f"{call}\n    {old}\n", f"{call}\n    {message}\n", 1), "utf-8")


def test_messages__are_listed_once() -> None:
    """No call appears twice in `messages.txt`, and each part of the file is run."""
    calls = [call for cases in parts().values() for call, _ in cases]
    assert len(calls) == len(set(calls)) >= 100
    assert parts().keys() == CALLS.keys()
