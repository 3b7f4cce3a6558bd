"""Episodes whose agents are clients of the Model Context Protocol: Claude Code, Codex and others.

Each tool call of a client is an action of its episode. `sessions` makes an agent from each client.
`server` accepts clients over stdio and HTTP, in both versions of the protocol: with connections,
and without (2026).
"""
