"""Interpreters, which turn an action into an observation: Bash, Python and SQL."""
