"""Environments: a class each, with its options, its traits and its stage.

A new environment is the composition of three things: an image, a dataset and a reward. It is a
subclass of `intercode.envs.base.InterCodeEnv` whose constructor puts them together (see
`intercode.envs.bash`), and a line in `intercode.registry.ENVS`. Without a class of one's own there
is a folder with an ``intercode.toml`` (see `intercode.project`), which also makes environments by
name.
"""

from intercode.legacy_names import getter

__getattr__ = getter(__name__)
