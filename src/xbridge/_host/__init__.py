"""Host memory by NumPy: copies, casts and checks (`memory`), sequences, and imports of foreign objects.

NumPy allocates and copies on the host for all backends. It asks the system for huge pages, so that a large
copy into its new memory is several times faster than in other libraries. `import xbridge` does not import
this package; the first conversion that needs it does.
"""
