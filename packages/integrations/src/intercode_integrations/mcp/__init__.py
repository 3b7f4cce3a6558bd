"""Episodes whose agents are clients of the Model Context Protocol: Claude Code, Codex and others.

A client's tool calls are its actions. ``sessions`` makes agents of clients; ``server`` accepts
clients over either transport and in either era of the protocol.
"""
