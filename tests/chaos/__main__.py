"""The command, as `python tests/chaos`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chaos.command import main

sys.exit(main())
