"""A server of environments, and its clients.

The protocol is OpenEnv's: JSON messages over a WebSocket. Each connection has a session with its
own environment.
"""

TOKEN = "INTERCODE_SERVE_TOKEN"
"""Environment variable with a server's token, for the server and for its clients."""
