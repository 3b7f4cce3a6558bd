"""The native provider of sandboxes, the default: Linux namespaces, without a daemon."""
