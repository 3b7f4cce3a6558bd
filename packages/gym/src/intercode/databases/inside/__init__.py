"""Code that runs in an embedded engine's sandbox, with the standard library and the engine only."""
