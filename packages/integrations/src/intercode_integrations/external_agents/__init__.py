"""External command-line agents, unmodified: in the sandbox, with a model and no network.

`profile` describes an agent: its command, settings and files. `episode_runner` runs the agent for
an episode, and `turns` rebuilds its turns from the calls to its model.
"""
