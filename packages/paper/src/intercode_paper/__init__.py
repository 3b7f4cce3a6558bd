"""The 2023 protocol: its environments, its rewards, and replays of its recorded runs.

No other package of InterCode depends on this package.
"""

import intercode
from intercode_sandbox.origin import check_package

check_package(intercode, "intercode_paper", __file__)

ORIGIN = "https://github.com/intercode-gym/intercode"
"""The project of this package: `intercode_sandbox.origin` reads this line before the import."""
VERSION = 1
"""The version of the 2023 grading rules, which are fixed. Raise it when any score can differ."""
