"""``dockerfile:PATH[OPTIONS]``: an image that a Dockerfile describes, built in our own sandbox.

Each instruction that changes files makes one layer, known by the layer below and by all that the
instruction depends on; nothing that is known is done again.
"""
