"""`python -m gateway.ops.healthcheck [URL]`: exit status 0 when the gateway on this machine answers.

Rule of this room: standard library only, as it runs every few seconds. Without a URL it asks the port that `PPD_PORT`
names (8000), over TLS where `PPD_TLS_CERT` is set; a certificate is not checked, for it need not name loopback.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

LIMIT_S = 4.0


def address(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """What to ask."""
    if arguments:
        return arguments[0]
    scheme = "https" if environment.get("PPD_TLS_CERT") else "http"
    return f"{scheme}://127.0.0.1:{environment.get('PPD_PORT', '8000')}/health"


def well(url: str) -> str | None:
    """None when it answers 200, else why not."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=LIMIT_S) as answer:
            return None if answer.status == 200 else f"status {answer.status}"
    except urllib.error.HTTPError as error:
        error.close()
        return f"status {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status; what is wrong goes to standard error."""
    url = address(sys.argv[1:] if arguments is None else arguments, os.environ)
    why = well(url)
    if why is not None:
        print(f"{url}: {why}", file=sys.stderr)
    return 0 if why is None else 1


if __name__ == "__main__":
    sys.exit(main())
