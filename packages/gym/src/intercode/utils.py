"""A module of the 2023 release, without names: they have moved to `intercode_paper.compat`.

An old import fails with an error that names the new module.
"""

from intercode.legacy_names import getter

__getattr__ = getter(__name__)
