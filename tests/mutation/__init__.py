"""Each defence is removed from a copy of the source, and something must then notice.

A test that passes says little about a defence as long as nobody has seen it fail. Here is a table
of defences (`defences`), each with the edit that removes it and a probe (`probes`) that must hold
with it and must not without it. By hand, from the repository's root::

    python -m tests.mutation [NAME...]
"""
