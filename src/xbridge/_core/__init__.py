"""The vocabulary of the core: names of dtypes and devices, the backend protocol, text. No NumPy, no I/O."""
