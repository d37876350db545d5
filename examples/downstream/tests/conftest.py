"""How hard Hypothesis tries: the first example pays for imports, so none has a time limit."""

from hypothesis import settings

settings.register_profile("spectra", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("nightly", deadline=None, max_examples=500)
settings.load_profile("spectra")
