"""A Python whose workers crash before they run anything. Process 1 of a sandbox has the pid 1."""

import os


def abort_in_worker() -> None:
    if os.getppid() == 1:
        os.write(2, b"Fatal Python error: broken\n\nCurrent thread:\n  <no Python frame>\n")
        os.abort()


os.register_at_fork(after_in_child=abort_in_worker)
