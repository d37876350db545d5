"""Handwritten digits, from NumPy to torch and back, with the result of every conversion.

Run it with `make demo`. It trains a small classifier on scikit-learn's bundled digits, passes
the probabilities back to scikit-learn while they still require grad, and then converts the same images in
five awkward forms. The table is made by NumPy's and torch's own means, and the script stops with an error as
soon as a promise is not kept.

With `--record` it trains instead in a loop that converts in every step, as many loops do, and then in a loop
that converts once. A record of both is printed as a table.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss

import xbridge
from xbridge import record, to_backend, to_numpy
from xbridge.testing import emulated

Array = np.ndarray[Any, np.dtype[Any]]

TRAINING = 1200
"""The number of images, of 1797, for the training. The others are for the test."""


class Conversion(NamedTuple):
    """The observed properties of a conversion."""

    title: str
    memory: str
    nbytes: int
    dtype: str
    writable: str
    graph: str


def promise(text: str, *, kept: bool) -> None:
    """Print a promise, and stop if it is not kept."""
    print(f"  {'kept' if kept else 'BROKEN'}: {text}")
    if not kept:
        raise SystemExit(1)


# -- the result of a conversion, without xbridge -------------------------------------------------


def bare(x: Any) -> Array:
    """Return the memory of an array by the means of its own library."""
    if not isinstance(x, torch.Tensor):
        return np.asarray(x)
    plain = x.detach()
    return plain.view(torch.int16).numpy() if x.dtype is torch.bfloat16 else plain.numpy()


def can_be_written(x: Any) -> bool:
    """Return True if a write succeeds. The write changes nothing."""
    try:
        x[:1] = x[:1]
    except (ValueError, RuntimeError):
        return False
    return True


def look(title: str, source: Any, result: Any) -> Conversion:
    """Compare a source with a result."""
    had, has = (getattr(x, "requires_grad", False) for x in (source, result))
    return Conversion(
        title=title,
        memory="shared" if np.shares_memory(bare(source), bare(result)) else "copied",
        nbytes=result.nbytes,
        dtype=str(result.dtype).removeprefix("torch."),
        writable="yes" if can_be_written(result) else "no",
        graph="none" if not had else "kept" if has else "ends",
    )


def table(conversions: list[Conversion]) -> Iterator[str]:
    """Yield the conversions as lines of text."""
    rows = [("conversion", "memory", "bytes", "dtype", "writable", "graph")]
    rows += [(c.title, c.memory, f"{c.nbytes:,}", c.dtype, c.writable, c.graph) for c in conversions]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()
        if row is rows[0]:
            yield "  " + "  ".join("-" * width for width in widths)


# -- the classifier: plain torch -----------------------------------------------------------------


def train(images: torch.Tensor, labels: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Train a classifier of digits, and return it as a function from images to probabilities."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
    return lambda given: model(given).softmax(dim=1)


# -- the same images, in awkward forms -----------------------------------------------------------


def awkward(images: Array, folder: Path) -> Iterator[tuple[str, Array, str]]:
    """Yield the same images in other forms: the form, the array, and the promise about its memory."""
    yield "reversed", images[::-1], "copied"

    yield "big-endian", images.astype(">f4"), "copied"

    locked = images.copy()
    locked.flags.writeable = False
    yield "read-only", locked, "copied"

    mapped = np.memmap(folder / "digits.bin", images.dtype, mode="w+", shape=images.shape)
    mapped[:] = images
    yield "memory-mapped", mapped, "shared"

    # Pixels are sixteenths, so bfloat16 holds them exactly.
    yield "bfloat16", images.astype(ml_dtypes.bfloat16), "shared"


# -- a training loop, and what it converts -------------------------------------------------------


def convert_in_every_step(pixels: Array, labels: Array, device: str) -> None:
    """Train as many loops do: convert every batch in its turn, and every loss."""
    model = torch.nn.Linear(64, 10).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        for start in range(0, TRAINING, 100):
            rows = slice(start, start + 100)
            batch = to_backend(pixels[rows], "torch", dtype="float32", device=device)
            wanted = to_backend(labels[rows], "torch", device=device)
            loss = torch.nn.functional.cross_entropy(model(batch), wanted)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(to_numpy(loss, copy=True))
    print(f"  the loss went from {losses[0]:.2f} to {losses[-1]:.2f}")


def convert_once(pixels: Array, labels: Array, device: str) -> None:
    """Train the same, but convert before the loop and after it."""
    model = torch.nn.Linear(64, 10).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    images = to_backend(pixels, "torch", dtype="float32", device=device)
    targets = to_backend(labels, "torch", device=device)
    losses = []
    for _ in range(20):
        for start in range(0, TRAINING, 100):
            rows = slice(start, start + 100)
            loss = torch.nn.functional.cross_entropy(model(images[rows]), targets[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
    first, last = to_numpy(torch.stack([losses[0], losses[-1]]))
    print(f"  the loss went from {first:.2f} to {last:.2f}")


def watch(device: str) -> None:
    """Record both loops."""
    if device == "emu":
        emulated.install()
    digits = load_digits()
    pixels, labels = digits.data / 16, digits.target
    with record() as seen:
        for title, loop in (("as many loops do", convert_in_every_step), ("once", convert_once)):
            print(f"\nTraining on {device}, and converting {title}:")
            torch.manual_seed(0)
            loop(pixels, labels, device)
    print(f"\n{seen.summary()}")


# -- the program ---------------------------------------------------------------------------------


def main() -> None:
    """Show the conversions, or record two training loops."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="record two training loops instead")
    parser.add_argument("--device", default="cpu", help="where they train: cuda, or emu, which is pretended")
    asked = parser.parse_args()
    if asked.record:
        watch(asked.device)
    else:
        show()


def show() -> None:
    """Show every conversion, from the first image to the error."""
    digits = load_digits()
    pixels, labels = np.asarray(digits.data / 16, "float32"), np.asarray(digits.target)
    seen: list[Conversion] = []

    print(f"\n1. {len(pixels)} images of handwritten digits go from NumPy to torch.")
    images, targets = to_backend(pixels, "torch"), to_backend(labels, "torch")
    seen += [look("images to torch", pixels, images), look("labels to torch", labels, targets)]
    promise("both libraries name the same address", kept=images.data_ptr() == pixels.ctypes.data)
    pixels[0, 0] = 0.5
    promise("what NumPy writes, torch reads", kept=images[0, 0].item() == 0.5)
    images[0, 0] = 0
    promise("what torch writes, NumPy reads", kept=pixels[0, 0] == 0)

    print(f"\n2. A small network is trained on {TRAINING} of them, and classifies the rest.")
    classify = train(images[:TRAINING], targets[:TRAINING])
    probabilities = classify(images[TRAINING:])
    promise("its probabilities still require grad", kept=probabilities.requires_grad)

    print("\n3. The probabilities go back to NumPy, for scikit-learn's metrics.")
    scores = to_numpy(probabilities)
    seen.append(look("probabilities to NumPy", probabilities, scores))
    promise("not a byte was copied", kept=scores.ctypes.data == probabilities.data_ptr())
    promise("NumPy cannot write into the graph's memory", kept=not can_be_written(scores))
    own = to_numpy(probabilities, copy=True)
    seen.append(look("the same, copy=True", probabilities, own))
    promise("copy=True is the caller's own, and writable", kept=can_be_written(own))

    truth, answers = labels[TRAINING:], scores.argmax(axis=1)
    confused = confusion_matrix(truth, answers)
    np.fill_diagonal(confused, 0)
    digit, taken_for = np.unravel_index(confused.argmax(), confused.shape)
    accuracy = accuracy_score(truth, answers)
    print(f"  accuracy {accuracy:.3f}, log loss {log_loss(truth, scores):.3f};")
    print(f"  the most frequent mistake: a {digit} is classified as a {taken_for}")
    promise("the network has learned something", kept=accuracy > 0.85)

    print("\n4. The same images are converted from five awkward forms.")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for form, given, memory in awkward(pixels, Path(folder)):
            arrived = to_backend(given, "torch")
            seen.append(look(f"{form} to torch", given, arrived))
            promise(f"{form}: {memory}", kept=seen[-1].memory == memory)
            again = to_numpy(classify(arrived.float())).argmax(axis=1)
            again = again[::-1] if form == "reversed" else again
            promise(f"{form}: every answer is the same", kept=np.array_equal(again[TRAINING:], answers))

    print("\n5. The result of each conversion:\n")
    print("\n".join(table(seen)))

    print("\n6. One array is refused. Its blank pixels are masked, and torch has no masks:\n")
    try:
        to_backend(np.ma.masked_equal(pixels, 0), "torch")
    except xbridge.UnsupportedArrayError as unsupported:
        print(f"  {type(unsupported).__name__}: {unsupported}\n")
    else:
        promise("a mask is never dropped", kept=False)


if __name__ == "__main__":
    main()
