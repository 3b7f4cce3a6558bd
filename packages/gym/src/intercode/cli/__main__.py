"""The entry point of ``python -m intercode.cli``, for use without the console script."""

import sys

from intercode_console import main

sys.exit(main())
