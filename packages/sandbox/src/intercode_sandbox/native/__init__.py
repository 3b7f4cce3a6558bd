"""Native sandboxes, the embedded default: Linux namespaces, without a daemon."""
