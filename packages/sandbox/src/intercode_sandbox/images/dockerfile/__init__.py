"""The images ``dockerfile:PATH[OPTIONS]``: builds of Dockerfiles, in InterCode's own sandboxes.

An instruction that changes files creates one layer, or several. The digest of a layer covers the
layer below and all inputs of the instruction. A layer that the cache has is not built again.

The module `instructions` parses the text. The module `parse` divides it into stages, and refuses
unsupported instructions. The module `evaluate` converts the instructions of a stage to steps,
`copy_files` copies files, and `build` executes the steps.
"""
