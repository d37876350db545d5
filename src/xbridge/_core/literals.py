"""Python numbers and sequences: values that are not arrays of any library."""

NUMBERS = (bool, int, float, complex)
"""The number types of Python."""

SEQUENCES = (list, tuple, range)
"""The types of nested lists of numbers and arrays."""

LITERALS = (*NUMBERS, *SEQUENCES)


def is_kind(x: object, kinds: type | tuple[type, ...]) -> bool:
    """Return True if the type of `x` is one of these classes, or derives from one.

    `isinstance` would ask `x` for its `__class__`, which a proxy may misstate or fail to compute.
    """
    return issubclass(type(x), kinds)
