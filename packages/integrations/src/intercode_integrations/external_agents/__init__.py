"""External command-line agents, unmodified, in a sandbox that reaches their model but no network.

`profile` describes an agent: the command, the settings and the files of its program.
`episode_runner` runs the program in an episode. `turns` rebuilds the episode's turns from the calls
to the model.
"""
