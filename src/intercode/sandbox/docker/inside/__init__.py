"""Process 1 of a container; it sees the standard library and `native` only."""
