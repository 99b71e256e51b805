"""Clients in a closed loop, in a process of their own, so that they disturb no measurement.

Usage: python -m tests.e2e.flood URL CLIENTS SECONDS BYTES; prints the number of good answers, and
fails with the first that is not.
"""

from __future__ import annotations

import sys
import threading
import time

from tests.e2e.raw_http import RawConnection, head


def flood(url: str, clients: int, seconds: float, nbytes: int) -> int:
    ends = time.monotonic() + seconds
    request = head("/mlp", length=nbytes, x_tensor_dtype="fp32") + bytes(nbytes)
    answered = [0] * clients

    def run(index: int) -> None:
        with RawConnection(url, timeout_s=60) as connection:
            while time.monotonic() < ends:
                connection.send(request)
                answer = connection.read()
                if answer.status != 200:
                    raise AssertionError(answer.body)
                answered[index] += 1

    threads = [threading.Thread(target=run, args=(index,)) for index in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(answered)


if __name__ == "__main__":
    url, clients, seconds, nbytes = sys.argv[1:]
    sys.stdout.write(f"{flood(url, int(clients), float(seconds), int(nbytes))}\n")
