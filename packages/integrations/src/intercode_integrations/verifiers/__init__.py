"""An adapter for verifiers and prime-rl: InterCode's tasks as a taskset, and a harness for them.

verifiers finds a plugin only by a module name without dots. Therefore the module
``intercode_verifiers`` has the same names::

    vf-eval intercode-verifiers --env.taskset.env sql -n 5 -r 2 -m MODEL --no-push
"""

from __future__ import annotations

from intercode_integrations import require_framework

with require_framework("verifiers", "intercode-gym[verifiers]"):
    from intercode_integrations.verifiers.harness import InterCodeHarness, InterCodeRollouts
    from intercode_integrations.verifiers.tasks import InterCodeTaskset

__all__ = ["InterCodeHarness", "InterCodeRollouts", "InterCodeTaskset"]
