"""What runs in a container as its process 1; it sees the standard library and `native` only."""
