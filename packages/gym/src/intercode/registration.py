"""Registration of the environments with Gymnasium."""

from __future__ import annotations

import sys


def register() -> None:
    """Register each environment with Gymnasium, as ``intercode-ENV-v0``. Idempotent."""
    import gymnasium

    for env in ("bash", "ctf", "python", "sql", "swe"):
        if f"intercode-{env}-v0" in gymnasium.registry:
            continue
        gymnasium.register(
            f"intercode-{env}-v0",
            entry_point="intercode.project:create",
            vector_entry_point="intercode.project:create_vec",
            kwargs={"env": env},
            # No wrappers: the environments themselves check the order of calls and the type of
            # actions, and a test runs Gymnasium's checker on each.
            order_enforce=False,
            disable_env_checker=True,
        )


def is_command_line() -> bool:
    """Return whether this process is the command line, which calls `register` only for a command.

    Gymnasium takes 0.2 s to import, and ``--help`` needs no environment.
    """
    console = sys.modules.get("intercode_console")
    is_module = sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] == f"{__package__}.cli"
    return is_module or getattr(console, "is_running", False)
