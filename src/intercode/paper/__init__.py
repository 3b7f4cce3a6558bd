"""The 2023 protocol: its interpreter, its reward, its class interface, and replays of its runs.

Nothing else in the package knows about it.
"""
