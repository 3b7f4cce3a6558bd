"""Local models, whose weights are on this machine: ``local/NAME`` or ``local/PATH.gguf``.

`catalog` lists open models, `store` manages their files, and `gguf` reads a file's header. `server`
runs llama.cpp's server for a file: one process for all callers, which ends with InterCode's
process. `client` contains the client of the provider ``local``.
"""

PROVIDER = "local"
"""The provider's name of local models, as in ``local/NAME``."""
