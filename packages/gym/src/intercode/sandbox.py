"""The public names of the package ``intercode_sandbox``, re-exported."""

from intercode_sandbox import *  # noqa: F403 - the names of its __all__
from intercode_sandbox import __all__ as __all__
