"""What all tests share: suites, and fixtures for sandboxes of every provider."""

from __future__ import annotations

pytest_plugins = ["suites.plugin", "sandbox.fixtures"]
