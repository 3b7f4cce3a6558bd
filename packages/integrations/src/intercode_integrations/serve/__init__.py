"""A server of environments, and clients that use its environments like local ones.

The protocol is OpenEnv's: JSON messages over a WebSocket. Each connection is a session with its own
environment.
"""

TOKEN = "INTERCODE_SERVE_TOKEN"
"""Name of the environment variable with a server's token, for the server and for its clients."""
