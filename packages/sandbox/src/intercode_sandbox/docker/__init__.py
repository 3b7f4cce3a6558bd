"""Sandboxes in containers of Docker's, or of another engine with its API."""
