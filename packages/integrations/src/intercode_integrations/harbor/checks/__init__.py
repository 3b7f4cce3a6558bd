"""Scripts that judge in a sandbox, copied as they are: they import nothing of InterCode."""
