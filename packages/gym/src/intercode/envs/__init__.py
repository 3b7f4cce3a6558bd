"""Environments: one class for each, with its options, its traits and its stage.

A new environment composes an image, a dataset and a reward. Its class is a subclass of
`intercode.envs.base.InterCodeEnv` whose constructor combines the three parts (see
`intercode.envs.bash`). A line in `intercode.registry.ENVS` registers the class. A benchmark needs
no new class: the ``intercode.toml`` in its folder (see `intercode.project`) names an existing
environment, the tasks and the options.
"""

from intercode.legacy_names import getter

__getattr__ = getter(__name__)
