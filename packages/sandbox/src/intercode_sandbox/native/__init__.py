"""The embedded default: sandboxes of Linux namespaces, with no daemon."""
