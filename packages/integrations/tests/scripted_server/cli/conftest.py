"""Running the command line, as in the gym's tests."""

from __future__ import annotations

from cli.conftest import cli as cli, data as data, warm as warm
