"""Adapters to other frameworks: each imports its own, none imports another adapter.

An adapter's framework is an extra of the same name (``intercode-gym[harbor]``); no environment can
hold them all.
"""
