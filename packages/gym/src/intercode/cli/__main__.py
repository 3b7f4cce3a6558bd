"""``python -m intercode.cli``: the command line where no script is installed."""

import sys

from intercode_console import main

sys.exit(main())
