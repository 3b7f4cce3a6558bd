"""Plug-ins of all tests: suites, and fixtures for sandboxes of every provider."""

from __future__ import annotations

pytest_plugins = ["suites.plugin", "sandbox.fixtures"]
