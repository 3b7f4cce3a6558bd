"""The command ``python -m intercode.run``, which has the options of ``intercode run``."""

from __future__ import annotations

import sys

from intercode.cli.main import run_command


def main() -> int:
    """Run the command with the process's arguments."""
    return run_command("run", sys.argv[1:], prog="python -m intercode.run")


if __name__ == "__main__":
    sys.exit(main())
