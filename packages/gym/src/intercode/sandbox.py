"""The public names of sandboxes, which are a package of their own."""

from intercode_sandbox import *  # noqa: F403 - the names of its __all__
from intercode_sandbox import __all__ as __all__
