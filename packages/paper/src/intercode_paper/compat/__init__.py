"""The classes of the 2023 release, with their names and signatures, on InterCode's sandboxes.

A script of 2023 runs after one changed import::

    from intercode_paper.compat import BashEnv, bash_build_docker, bash_image_name, bash_test_data

Observations and rewards are those of ``protocol="paper"``, except for `SWEEnv`, which that protocol
lacks. `docs/2023/coming-from-2023.md` lists the differences, and describes the migration to the
new interface.
"""

from intercode_paper.compat.assets import (
    bash_build_docker,
    bash_image_name,
    bash_test_data,
    sql_build_docker,
    sql_image_name,
    sql_test_data,
)
from intercode_paper.compat.base import (
    ACTION_EXEC,
    AGENT_OBS,
    CORRUPT_GOLD,
    EVAL_OBS,
    REWARD,
    IntercodeEnv,
)
from intercode_paper.compat.python import PythonEnv
from intercode_paper.compat.shells import (
    GIT_RESET_SCRIPT,
    GIT_STATUS_SCRIPT,
    BashEnv,
    CTFEnv,
    SWEEnv,
)
from intercode_paper.compat.sql import SqlEnv
from intercode_paper.compat.utils import (
    START_UP_DELAY,
    TIMEOUT_DURATION,
    Container,
    IntercodeDataLoader,
    get_container,
    timeout,
)

__all__ = [
    "ACTION_EXEC",
    "AGENT_OBS",
    "CORRUPT_GOLD",
    "EVAL_OBS",
    "GIT_RESET_SCRIPT",
    "GIT_STATUS_SCRIPT",
    "REWARD",
    "START_UP_DELAY",
    "TIMEOUT_DURATION",
    "BashEnv",
    "CTFEnv",
    "Container",
    "IntercodeDataLoader",
    "IntercodeEnv",
    "PythonEnv",
    "SWEEnv",
    "SqlEnv",
    "bash_build_docker",
    "bash_image_name",
    "bash_test_data",
    "get_container",
    "sql_build_docker",
    "sql_image_name",
    "sql_test_data",
    "timeout",
]
