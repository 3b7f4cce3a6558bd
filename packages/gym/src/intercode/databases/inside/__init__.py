"""Code for an embedded engine's sandbox, which uses only the standard library and the engine."""
