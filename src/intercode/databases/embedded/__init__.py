"""Engines that are a library, run in worker processes inside sandboxes: SQLite and DuckDB."""
