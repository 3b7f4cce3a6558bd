"""Records what refactorings must not change, and compares: names, options, codes, shapes."""
