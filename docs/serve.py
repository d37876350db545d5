"""Serve the built site on this machine, and open it in a browser; Ctrl-C ends it.

The pages link to folders, which a browser lists when it opens them as files, and the search needs a server.
"""

import sys
import webbrowser
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BUILT = Path(__file__).resolve().parents[1] / "build" / "site"


def main() -> None:
    """Serve until the program is interrupted."""
    if not (BUILT / "index.html").exists():
        sys.exit(f"cannot serve the site: {BUILT} has none; try make site")
    port = int(sys.argv[1]) if sys.argv[1:] else 8000
    with ThreadingHTTPServer(
        ("127.0.0.1", port), partial(SimpleHTTPRequestHandler, directory=BUILT)
    ) as server:
        address = f"http://127.0.0.1:{server.server_port}/dev/"
        print(f"The site is at {address}; Ctrl-C ends it", flush=True)
        webbrowser.open(address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
