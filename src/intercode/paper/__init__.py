"""The 2023 protocol: its environments, its rewards, and replays of its recorded runs.

No other room of the package depends on it.
"""
