"""What runs in the sandbox of an embedded database: the standard library, and the engine's own."""
