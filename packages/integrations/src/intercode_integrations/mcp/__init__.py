"""Episodes whose agents are clients of the Model Context Protocol: Claude Code, Codex and others.

A client's calls of tools are its actions. ``sessions`` makes agents of clients, ``server`` lets
them in, by either transport and in either era of the protocol.
"""
