"""Environments: one class for each, with its options, its traits and its stage.

A new environment composes an image, a dataset and a reward. Its class is a subclass of
`intercode.envs.base.InterCodeEnv` whose constructor combines the three parts (see
`intercode.envs.bash`). A line in `intercode.registry.ENVS` registers the class. Without a class,
a folder with an ``intercode.toml`` (see `intercode.project`) also defines an environment by name.
"""

from intercode.legacy_names import getter

__getattr__ = getter(__name__)
