"""The Docker provider: sandboxes in containers of Docker, or of another engine with its API."""
