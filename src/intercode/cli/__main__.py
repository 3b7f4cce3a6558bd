"""``python -m intercode.cli``: the command line where no script is installed."""

import sys

from intercode.cli.main import main

sys.exit(main())
