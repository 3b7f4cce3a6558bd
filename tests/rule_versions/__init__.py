"""Reminds whoever changes a rule of grading, or a dataset, of its version."""
