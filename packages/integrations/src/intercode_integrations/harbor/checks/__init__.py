"""Scripts that score in a sandbox; exported unchanged, they import nothing from InterCode."""
