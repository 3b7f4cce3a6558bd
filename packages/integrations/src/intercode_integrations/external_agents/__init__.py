"""Command-line agents of others, unmodified: in the sandbox, with a model and no network.

`profile` says what an agent is (its command, its settings, its own files), `play` lets it play an
episode, and `turns` makes its record from what it asked its model.
"""
