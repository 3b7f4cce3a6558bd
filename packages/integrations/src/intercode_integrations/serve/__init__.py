"""Serving environments over the network, and playing in those of a server.

The wire is OpenEnv's: JSON messages over a WebSocket, a session with an environment of its own for
each connection.
"""

TOKEN = "INTERCODE_SERVE_TOKEN"
"""The variable of the environment that may have a server's token: its own, or its clients'."""
