"""How hard Hypothesis tries: the first example pays for what numba compiles, so none has a time limit."""

from hypothesis import settings

settings.register_profile("sparse", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("sparse")
