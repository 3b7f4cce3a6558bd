"""The 2023 protocol: its environments, its rewards, and replays of its recorded runs.

No other room of the package depends on it.
"""

import intercode
from intercode_sandbox.origin import check_package

check_package(intercode, "intercode_paper", __file__)

ORIGIN = "https://github.com/intercode-gym/intercode"
"""The project of this package: `intercode_sandbox.origin` reads this line before the import."""
VERSION = 1
"""The version of the rules of 2023. They stay as they are: raise it when any score can differ."""
