"""A Python whose workers start, and crash at whatever action they run."""

import os
import sys


def abort_at_action(event: str, args: tuple[object, ...]) -> None:
    if event == "exec" and getattr(args[0], "co_filename", "").startswith("<action"):
        os.abort()


sys.addaudithook(abort_at_action)
