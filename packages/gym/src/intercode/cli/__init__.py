"""The command-line interface: a module for each command, and modules that commands share."""
