"""Databases: one conformance suite for all engines, and what is each one's own."""
