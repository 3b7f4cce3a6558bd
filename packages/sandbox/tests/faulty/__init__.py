"""Modules that break the Python of a spawner: preloaded beside the workers, from this folder."""
