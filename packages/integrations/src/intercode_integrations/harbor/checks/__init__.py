"""Scripts that score in a sandbox. The export copies them unchanged, so none imports InterCode."""
