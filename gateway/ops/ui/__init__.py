"""The live page at `/ui`: static files that show what the admin API tells.

Rule of this room: nothing is made on the server. The page asks the admin API like any client, with the token that
somebody typed in; the files hold nothing to protect. No script, style or picture comes from elsewhere, none is inline.

- `page.html`, `page.css`: all there is to see, before anything is known.
- `main.js` polls and hands out; `api.js` is every word with the server; `dom.js` makes and keeps elements.
- One file per panel: `header.js`, `flow.js`, `pods.js`, `decisions.js`, `heatmap.js`, `canary.js`, `watch.js`;
  `explain.js` opens one decision. `format.js` writes numbers and names for all of them, `say.js` tells how a change
  went.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from gateway.net.exchange import Page
from gateway.ops.admin.server import OpenPage

HERE = Path(__file__).parent
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def live_page() -> dict[str, OpenPage]:
    """All files by path: the page itself at `/ui`, what it loads below. Read once."""
    found = {}
    for file in sorted(HERE.iterdir()):
        if file.suffix in TYPES:
            path = "/ui" if file.name == "page.html" else f"/ui/{file.name}"
            found[path] = OpenPage(partial(Page, TYPES[file.suffix], file.read_bytes()), HEADERS)
    return found
