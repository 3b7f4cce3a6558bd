"""Declarations of commands: options and help.

What a command does is in the module of its name in `intercode.cli`, and imported when it runs: help
and wrong usage need no evaluator.
"""
