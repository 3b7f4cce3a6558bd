"""Programs that run in a sandbox: standard library only, and Python from 3.8."""
