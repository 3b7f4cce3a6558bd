"""Declarations of commands: for each command, a module with its options and its help text.

The module of the same name in `intercode.cli` executes the command, and is imported only for that.
Thus ``--help`` and errors of usage do not import the evaluator, which takes long.
"""
