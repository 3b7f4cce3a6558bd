"""A module of the 2023 release: its names are in `intercode_paper.compat`."""

from intercode.legacy_names import getter

__getattr__ = getter(__name__)
