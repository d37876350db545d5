"""The script `xbridge-array`: Ctrl-C ends it without a traceback while the package is imported.

It is beside the package, because an import of any module of the package takes most of that time.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # until `script` has the handlers
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from xbridge.files import script

__all__ = ["script"]
