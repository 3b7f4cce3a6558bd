"""A Python that a C program cannot fork: what must be called in a child ends it."""

import ctypes

ctypes.pythonapi.PyOS_AfterFork_Child = ctypes.PyDLL(None).abort
