"""A scripted model server with deliberate faults, for InterCode's tests and its users' tests.

Only tests use this package; InterCode itself never imports it.
"""

from __future__ import annotations

from intercode.models.scripted import Line, Rule, Script, script
from intercode_integrations.testing.request_conversion import shell
from intercode_integrations.testing.server import (
    Exchange,
    Fault,
    Plan,
    ScriptedServer,
    first,
    some,
    status,
    too_many,
    usual,
)

__all__ = [
    "Exchange",
    "Fault",
    "Line",
    "Plan",
    "Rule",
    "Script",
    "ScriptedServer",
    "first",
    "script",
    "shell",
    "some",
    "status",
    "too_many",
    "usual",
]
