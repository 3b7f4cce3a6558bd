"""The command, as `python tests/chaos`."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "packages/sandbox/tests")]

from chaos.command import main  # noqa: E402 - found by these lines

sys.exit(main())
