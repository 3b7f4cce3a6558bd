"""Sandboxes in containers of Docker, or of another engine with Docker's API."""
