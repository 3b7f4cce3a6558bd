"""Databases from one form into another: dumps, scripts, files; schemas between engines."""
