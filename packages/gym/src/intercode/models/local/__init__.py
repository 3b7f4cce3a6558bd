"""Models whose weights lie on this machine, as ``local/NAME`` or ``local/PATH.gguf``.

`catalog` lists open models, `store` keeps their files, `gguf` reads a file's header, and `server`
runs llama.cpp's own server over it: one process for all callers of a file, which ends with ours.
`client` is the client that the provider ``local`` stands for.
"""

PROVIDER = "local"
"""The provider of the models of this machine, as in ``local/NAME``."""
