"""Interpreters: how an action becomes an observation."""
