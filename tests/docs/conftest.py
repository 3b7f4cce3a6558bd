"""Commands of the pages are started as those of the command line's tests."""

from cli.conftest import warm as warm
