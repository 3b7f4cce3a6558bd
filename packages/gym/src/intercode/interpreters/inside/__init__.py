"""Programs that run in a sandbox, with the standard library only, on Python 3.8 or later."""
