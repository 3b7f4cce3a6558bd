"""Entry point of ``python -m intercode.cli``, where the script is not installed."""

import sys

from intercode_console import main

sys.exit(main())
