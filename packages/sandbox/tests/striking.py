"""How tests interrupt a call of an environment: by a signal, as soon as it runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from waiting import eventually


@contextmanager
def struck_in_a_call(env: Any, number: int) -> Iterator[None]:
    """Send this process a signal as soon as a call of the environment runs."""

    def strike() -> None:
        if eventually(lambda: env.unwrapped._calls._holder is not None):
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield
    finally:
        thread.join()
