"""An array that is read when a test wants it to be, for tests of what goes on beside the program."""

from __future__ import annotations

import threading

import numpy as np

PATIENCE = 60
"""Seconds after which a test that waits has failed."""


class Gate:
    """An array of a library that is slow: it is read when somebody opens the gate, or not at all."""

    def __init__(self) -> None:
        self.reading, self.opened = threading.Event(), threading.Event()

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        self.reading.set()
        assert self.opened.wait(PATIENCE)
        return np.ones(2)
