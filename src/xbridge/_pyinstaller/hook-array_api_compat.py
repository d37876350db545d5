"""The namespaces of array-api-compat, which imports their parts `fft` and `linalg` by name.

Their libraries are bundled only if the program imports them.
"""

from pathlib import Path

import array_api_compat

from xbridge.backends import HOST, INDEX

PACKAGE = Path(array_api_compat.__file__).parent
parts = [path.relative_to(PACKAGE.parent).with_suffix("").parts for path in PACKAGE.rglob("*/*.py")]
hiddenimports = [".".join(names) for names in parts if names[-1] in ("fft", "linalg")]
excludedimports = [root for name, entry in INDEX.items() if name != HOST for root in entry.roots]
