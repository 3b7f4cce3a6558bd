"""InterCode for verifiers and prime-rl: its tasks as a taskset, with a harness that plays them.

verifiers finds a plugin by the name of a module without dots: that is ``intercode_verifiers``,
which has the same names::

    vf-eval intercode-verifiers --env.taskset.env sql -n 5 -r 2 -m MODEL --no-push
"""

from __future__ import annotations

from intercode_integrations import require_framework

with require_framework("verifiers", "intercode-gym[verifiers]"):
    from intercode_integrations.verifiers.harness import InterCodeHarness, InterCodeRollouts
    from intercode_integrations.verifiers.tasks import InterCodeTaskset

__all__ = ["InterCodeHarness", "InterCodeRollouts", "InterCodeTaskset"]
