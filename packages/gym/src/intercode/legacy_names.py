"""The public names of the 2023 release, which have moved to `intercode_paper.compat`.

An import of an old name fails with an error that gives the new location.
"""

from __future__ import annotations

from collections.abc import Callable

NAMES = {
    "intercode.assets": """
        bash_build_docker bash_image_name bash_test_data
        sql_build_docker sql_image_name sql_test_data
    """,
    "intercode.envs": """
        IntercodeEnv BashEnv CTFEnv PythonEnv SqlEnv SWEEnv
        AGENT_OBS EVAL_OBS CORRUPT_GOLD ACTION_EXEC REWARD
    """,
    "intercode.utils": "IntercodeDataLoader get_container timeout START_UP_DELAY",
}
"""Module of the 2023 release → the names that it had. All are in `intercode_paper.compat` now."""


def getter(module: str) -> Callable[[str], object]:
    """Return a function for a module's ``__getattr__``, which reports where an old name is now.

    Args:
        module: The module's name, a key of `NAMES`.
    """
    names = NAMES[module].split()

    def find(name: str) -> object:
        if name in names:
            raise ImportError(
                f"{name} belongs to the InterCode of 2023: pip install intercode-paper, and "
                f"change the import to: from intercode_paper.compat import {name} "
                "(docs/2023/coming-from-2023.md)"
            )
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find
