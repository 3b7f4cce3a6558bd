"""Calls of a model's server: ``python3 caller.py PORT KEY CALLS`` prints the time of each, in ms.

It needs nothing but Python, as it runs in sandboxes, too.
"""

import json
import sys
import time
from http.client import HTTPConnection

WORDS = 64
"""Tokens of an answer, each of which is an event of a stream."""
BODY = {"model": "any", "messages": [{"role": "user", "content": "word " * 1000}]}


def call(connection: HTTPConnection, key: str, stream: bool) -> None:
    """Make a call, and read all of the answer."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    body = json.dumps({**BODY, "stream": stream})
    connection.request("POST", "/v1/chat/completions", body, headers)
    answer = connection.getresponse()
    said = answer.read()
    if answer.status != 200 or said.count(b"word") < WORDS:
        raise SystemExit(f"no answer: {answer.status} {said[:500]!r}")


def times(port: int, key: str, calls: int, stream: bool = True) -> list[float]:
    """Make calls one after the other by one connection, and one before; the ms of each."""
    connection = HTTPConnection("127.0.0.1", port)
    found = []
    try:
        for _ in range(calls + 1):
            start = time.perf_counter()
            call(connection, key, stream)
            found.append(1e3 * (time.perf_counter() - start))
        return found[1:]
    finally:
        connection.close()


if __name__ == "__main__":
    print(*times(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
