"""Agents act in episodes: a factory makes one for each."""
