"""Names of dtypes and devices, the backend protocol, and text. No NumPy, no I/O."""
