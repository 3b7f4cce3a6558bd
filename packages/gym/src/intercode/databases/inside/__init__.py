"""Code of an embedded database's sandbox; it imports the standard library and the engine only."""
