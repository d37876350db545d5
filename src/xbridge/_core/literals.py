"""Python numbers and sequences: values that are not arrays of any library."""

NUMBERS = (bool, int, float, complex)
"""The number types of Python."""

SEQUENCES = (list, tuple, range)
"""The types of nested lists of numbers and arrays."""

LITERALS = (*NUMBERS, *SEQUENCES)
"""Test for them by `issubclass(type(x), LITERALS)`. `isinstance` reads `__class__`, where a proxy may lie."""
