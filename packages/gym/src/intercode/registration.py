"""Registration of the environments with Gymnasium."""

from __future__ import annotations

import sys


def register() -> None:
    """Register InterCode's own environments with Gymnasium, by the ids ``intercode-ENV-v0``.

    The function is idempotent.
    """
    import gymnasium

    for env in ("bash", "ctf", "python", "sql", "swe"):
        if f"intercode-{env}-v0" in gymnasium.registry:
            continue
        gymnasium.register(
            f"intercode-{env}-v0",
            entry_point="intercode.project:create",
            vector_entry_point="intercode.project:create_vec",
            kwargs={"env": env},
            # The environments need none of Gymnasium's checking wrappers: they check the order of
            # calls and the type of actions themselves. A test of InterCode runs Gymnasium's checker
            # on each environment.
            order_enforce=False,
            disable_env_checker=True,
        )


def is_command_line() -> bool:
    """Return whether this process executes the command ``intercode``.

    The command calls `register` itself before it executes a subcommand. Therefore importing the
    package must not call `register`: the import of Gymnasium takes 0.2 s, and ``--help`` needs no
    environment.
    """
    console = sys.modules.get("intercode_console")
    is_module = sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] == f"{__package__}.cli"
    return is_module or getattr(console, "is_running", False)
