"""The 2023 protocol: its environments, its rewards, and replays of its recorded runs.

No other package of InterCode depends on this package.
"""

import intercode
from intercode_sandbox.origin import check_package

check_package(intercode, "intercode_paper", __file__)

ORIGIN = "https://github.com/intercode-gym/intercode"
"""URL of the project. `intercode_sandbox.origin` reads this line before it imports the package."""
VERSION = 1
"""The version of this implementation of the 2023 grading rules. Raise it if a score can change."""
