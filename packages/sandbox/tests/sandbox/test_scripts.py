"""Scripts longer than the kernel takes as an argument run as short ones do."""

from __future__ import annotations

from contextlib import closing

from intercode_sandbox import Limits, Provider
from intercode_sandbox.base import SupportsPrivateExec
from intercode_sandbox.script_arguments import script


def test_a_script_of_any_length_is_the_same_script(provider: Provider) -> None:
    with closing(provider.start("host", Limits(private=True))) as sandbox:
        outcomes = set()
        for size in (10, 140_000, 3_000_000):
            words = "cat; echo $LINENO ${REPLY-none} $0 $1; nosuch; exit 3"
            argv, stdin = script(f": '{'é' * (size // 2)}'\n{words}", "name", "first")
            runs = [sandbox.exec(argv, stdin=stdin)]
            if isinstance(sandbox, SupportsPrivateExec):
                runs.append(sandbox.exec_private(argv, stdin=stdin))
            outcomes.update((done.exit_code, done.stdout, done.stderr) for done in runs)
        message = b"name: line 2: nosuch: command not found\n"
        assert outcomes == {(3, b"2 none name first\n", message)}
