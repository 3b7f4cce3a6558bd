"""Engines on a database server, at a URL or private: MySQL, MariaDB, PostgreSQL."""
