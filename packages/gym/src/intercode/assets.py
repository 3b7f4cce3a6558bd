"""A module of the 2023 release: its names are in `intercode_paper.compat`."""

from intercode.moved import getter

__getattr__ = getter(__name__)
