"""Names of dtypes and devices, the backend protocol, and text. No NumPy, no I/O."""

__version__ = "0.1.0"
