"""Declarations of commands: their options and help.

The module of the same name in `intercode.cli` executes a command, and is imported only then. Help
and errors of usage need no evaluator.
"""
