"""The images' HEALTHCHECK: exit 0 where /health/ready says yes, else say why and exit 1.

Standard library only, and run with `-I -S`: it starts every few seconds, beside real work.
"""

import http.client
import os
import sys


def check(port: int, timeout_s: float = 3.0) -> str | None:
    """What keeps the service on this port from being ready; None when nothing does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", "/health/ready")
        answer = connection.getresponse()
        body = answer.read(1000).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"/health/ready: {error!r}"
    finally:
        connection.close()
    return None if answer.status == http.HTTPStatus.OK else f"{answer.status} {body}"


if __name__ == "__main__":
    sys.exit(check(int(os.environ.get("MLP_PORT") or 8000)))
