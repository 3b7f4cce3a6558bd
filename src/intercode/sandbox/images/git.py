"""Git on this machine, over repositories that nobody has looked through.

Nothing of a repository is executed, and no setting of this machine's owner has a say: git reads one
configuration of ours, which knows no hook, filter, credential helper or monitor.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import IO

from intercode.errors import ImageError

_SECONDS = 3600.0
_CONFIG = """\
[core]
\thooksPath = /dev/null
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\tfsmonitor = false
\tlogAllRefUpdates = false
\tautocrlf = false
\tcheckStat = minimal
\ttrustctime = false
[safe]
\tdirectory = *
[init]
\tdefaultBranch = main
[fetch]
\trecurseSubmodules = false
\tunpackLimit = 1
[submodule]
\trecurse = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
[pack]
\tthreads = 1
[user]
\tname = InterCode
\temail = intercode@example.invalid
"""
_DATE = "2000-01-01T00:00:00Z"


class Git:
    """Runs git.

    Args:
        scratch: An existing folder for its configuration.
    """

    def __init__(self, scratch: Path) -> None:
        config = scratch / "gitconfig"
        config.write_text(_CONFIG, encoding="ascii")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        self._env = {
            **kept,
            "GIT_CONFIG_GLOBAL": str(config),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",  # above all not ext, which runs things
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_AUTHOR_DATE": _DATE,
            "GIT_COMMITTER_DATE": _DATE,
            "LC_ALL": "C",
        }

    def __call__(self, *arguments: str | Path, stdin: IO[bytes] | None = None) -> str:
        """What a git command prints, without the blanks around it.

        Raises:
            ImageError: There is no git, or it failed; the message is what it said.
        """
        try:
            done = subprocess.run(
                ["git", *map(str, arguments)],
                env=self._env,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise ImageError("there is no git on this machine: apt-get install git") from None
        except subprocess.TimeoutExpired:
            raise ImageError(f"git was not done within {_SECONDS:.0f} s") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise ImageError(f"git failed: {said or f'exit code {done.returncode}'}")
        return done.stdout.decode(errors="surrogateescape").strip()
