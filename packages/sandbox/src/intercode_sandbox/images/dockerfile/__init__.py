"""``dockerfile:PATH[OPTIONS]``: an image built from a Dockerfile, in InterCode's own sandbox.

Each instruction that changes files creates one layer. The layer's digest covers the layer below and
all inputs of the instruction; a cached layer is not built again.
"""
