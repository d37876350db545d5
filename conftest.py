"""What is collected where: examples that need a library are left out where it is missing."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["src/xbridge/backends/torch", "src/xbridge/_convert.py"]
