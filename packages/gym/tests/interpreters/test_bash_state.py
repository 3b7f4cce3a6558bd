"""What lives on from action to action, through a restart of the shell too."""

from __future__ import annotations

import pytest

from intercode.interpreters.bash import BashInterpreter
from waiting import PATIENCE

pytestmark = pytest.mark.ordinary

RESTARTS = ["true", "exit 3", "exec ls", "kill -9 $$", "set -e; false"]


def output_of(bash: BashInterpreter, action: str) -> str:
    return bash.execute(action, PATIENCE).output.decode()


@pytest.mark.case(2)
def test_the_directory(bash: BashInterpreter) -> None:
    bash.execute("mkdir -p a/b; cd a")
    done = bash.execute("cd b")
    assert done.info["cwd"] == "/tmp/w/a/b"
    assert output_of(bash, "pwd; cd -; pwd") == "/tmp/w/a/b\n/tmp/w/a\n/tmp/w/a\n"


@pytest.mark.case(2)
def test_a_directory_that_is_removed(bash: BashInterpreter) -> None:
    bash.execute("mkdir gone; cd gone; rmdir ../gone; unset PWD")
    assert bash.execute("ls").exit_code is not None
    assert bash.execute("exit").info["cwd"] == "/"
    assert output_of(bash, "pwd") == "/\n"


@pytest.mark.case(3, 14)
@pytest.mark.parametrize("restart", RESTARTS)
def test_variables_functions_and_options(bash: BashInterpreter, restart: str) -> None:
    bash.execute(
        "cd /tmp; plain=$'a\\nset -o errexit\\n'; export shown='x y'; list=(1 '2 3'); "
        "declare -A map=([k]='v w'); declare -i number=3; readonly fixed=r; "
        "f() { cat <<X\nset -o errexit $1\nX\n}\n"
        "alias say='echo said'; umask 027; shopt -s nullglob; shopt -u sourcepath; "
        "set -f; set -o pipefail; trap 'echo usr' USR1"
    )
    bash.execute(restart)
    check = (
        'pwd; echo "$plain"; printenv shown; echo "${list[1]}" "${map[k]}"; number=1+1; '
        "echo $number; f a; umask; echo $-; kill -USR1 $$; shopt nullglob sourcepath; echo *"
    )
    lines = output_of(bash, check).splitlines()
    assert lines[:9] == [
        "/tmp", "a", "set -o errexit", "", "x y", "2 3 v w", "2", "set -o errexit a", "0027"
    ]  # fmt: skip
    assert "f" in lines[9]
    assert "e" not in lines[9]
    assert lines[10] == "usr"
    assert [line.split() for line in lines[11:13]] == [["nullglob", "on"], ["sourcepath", "off"]]
    assert lines[13] == "*"
    assert output_of(bash, "say") == "said\n"
    assert bash.execute("false | true").exit_code == 1
    assert b"readonly" in bash.execute("fixed=2").output


@pytest.mark.case(14)
def test_exit(bash: BashInterpreter) -> None:
    bash.execute("X=1")
    done = bash.execute("X=2; echo before; exit 3; echo after")
    assert (done.output, done.exit_code) == (b"before\n", 3)
    assert done.info["restarted"] is True
    assert "the shell ended with exit code 3" in done.observation
    assert output_of(bash, "echo $? $X") == "3 2\n"


def test_an_exit_that_takes_long(bash: BashInterpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if we never saw the shell's end: it has said with what code it would."""
    monkeypatch.setattr("intercode.interpreters.bash._GRACE_SECONDS", 0.0)
    shell = bash._shell
    assert shell is not None
    shell._poll.unregister(shell._exit)
    done = bash.execute("X=2; exit 3", PATIENCE)
    assert (done.exit_code, done.info["restarted"]) == (3, True)
    assert output_of(bash, "echo $? $X") == "3 2\n"


@pytest.mark.case(15)
def test_logout_and_suspend(bash: BashInterpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "intercode.interpreters.bash._GRACE_SECONDS", 0.5
    )  # allow limit: it will not answer
    bash.execute("X=1")
    assert bash.execute("logout").exit_code == 1
    bash.execute("suspend", timeout=0.3)  # allow limit: it stands still
    assert output_of(bash, "echo $X") == "1\n"


@pytest.mark.case(16)
def test_exec_of_a_program(bash: BashInterpreter) -> None:
    bash.execute("touch file; X=1")
    done = bash.execute("exec ls")
    assert (done.output, done.exit_code, done.info["restarted"]) == (b"file\n", 0, True)
    assert output_of(bash, "echo $X; pwd") == "1\n/tmp/w\n"


@pytest.mark.case(18)
def test_set_e(bash: BashInterpreter) -> None:
    assert output_of(bash, "set -e; X=1; echo a") == "a\n"
    done = bash.execute("echo b; false; echo c")
    assert (done.output, done.exit_code) == (b"b\n", 1)
    assert output_of(bash, "false; echo $X") == "1\n"


@pytest.mark.case(19)
def test_set_u(bash: BashInterpreter) -> None:
    assert b"unbound variable" in bash.execute("set -u; echo $nope; echo after").output
    assert output_of(bash, "echo on; set +u; echo off$nope") == "on\noff\n"


@pytest.mark.case(21)
def test_tracing_shows_no_line_of_ours(bash: BashInterpreter) -> None:
    bash.execute("set -x")
    assert output_of(bash, "echo a") == "++ echo a\na\n"
    bash.execute("false")
    bash.execute("set +x; set -v")
    assert output_of(bash, "echo a") == "echo a\na\n"
    assert output_of(bash, "set +v") == "set +v\n"
    assert output_of(bash, "echo b") == "b\n"


@pytest.mark.case(22)
def test_traps(bash: BashInterpreter) -> None:
    bash.execute("trap 'echo error' ERR")
    assert output_of(bash, "false; true") == "error\n"
    assert output_of(bash, "false") == "error\n"
    assert output_of(bash, "true") == ""
    bash.execute("trap - ERR; trap 'echo debug' DEBUG")
    assert output_of(bash, "echo a; echo b") == "debug\na\ndebug\nb\n"
    assert output_of(bash, "trap - DEBUG") == "debug\n"
    assert output_of(bash, "false; echo c") == "c\n"
    bash.execute("trap 'echo bye' EXIT")
    assert output_of(bash, "echo d") == "d\n"
    assert bash.execute("exit 4").output == b"bye\n"
    assert output_of(bash, "trap - EXIT; echo e") == "e\n"


@pytest.mark.case(24, 25)
def test_variables_that_steer_a_shell(bash: BashInterpreter) -> None:
    bash.execute("PS1='hack> '; PS0=zero; PROMPT_COMMAND='echo prompt'; HISTFILE=/tmp/history")
    bash.execute("IFS=0123456789/; BASH_ENV=/nope; ENV=/nope; LC_ALL=nope; GLOBIGNORE='*'")
    assert output_of(bash, "echo 'a b'; cd /tmp; pwd") == "a b\n/tmp\n"
    bash.execute("PATH=")
    assert bash.execute("ls").exit_code == 127
    assert output_of(bash, "PATH=/usr/bin:/bin; ls -d /") == "/\n"
    assert output_of(bash, 'echo "${#IFS}"') == "11\n"


@pytest.mark.case(28)
def test_readonly_variables(bash: BashInterpreter) -> None:
    bash.execute("mkdir sub; readonly R=1 PATH PWD IFS")
    assert bash.execute("cd sub").info["cwd"] == "/tmp/w/sub"
    assert output_of(bash, "echo $R; ls -d .") == "1\n.\n"
    bash.execute("exit")
    assert b"readonly" in bash.execute("R=2").output
    assert output_of(bash, "echo $R") == "1\n"


@pytest.mark.case(29)
@pytest.mark.parametrize("close", ["exec 1>&-", "exec 0<&-", "exec 2>&-", "exec 0<&- >&- 2>&-"])
def test_closed_streams_are_back_in_the_next_action(bash: BashInterpreter, close: str) -> None:
    bash.execute(close)
    assert output_of(bash, "cat; echo out; echo error >&2") == "out\nerror\n"


@pytest.mark.case(30)
def test_a_redirection_of_the_shell_persists(bash: BashInterpreter) -> None:
    assert output_of(bash, "exec 5>&1 >file") == ""
    assert output_of(bash, "echo one; echo two") == ""
    assert output_of(bash, "exec >&5; cat file; rm file") == "one\ntwo\n"


@pytest.mark.case(32)
def test_a_descriptor_of_the_users_own(bash: BashInterpreter) -> None:
    bash.execute("exec 3>file; echo a >&3")
    bash.execute("echo b >&3")
    assert output_of(bash, "exec 3>&-; cat file") == "a\nb\n"


@pytest.mark.case(58)
def test_a_large_variable(bash: BashInterpreter) -> None:
    bash.execute("x=$(head -c 6000000 /dev/zero | tr '\\0' y)", PATIENCE)
    assert output_of(bash, "echo ${#x}") == "6000000\n"
    bash.execute("exit", PATIENCE)
    assert output_of(bash, "echo ${#x}") == "6000000\n"


def test_positional_parameters_and_options(bash: BashInterpreter) -> None:
    bash.execute("set -- a 'b c'")
    assert output_of(bash, 'echo $# "$2" "$0"') == "2 b c bash\n"
    bash.execute("set -o posix; X=1")
    assert output_of(bash, "echo $X; shopt -oq posix && echo posix") == "1\nposix\n"
    assert output_of(bash, "echo $(ls").count("line 1:") <= 1
    assert output_of(bash, "jobs; trap | grep -c RETURN") == "0\n"


def test_two_shells_share_files_and_nothing_else(bash: BashInterpreter) -> None:
    other = BashInterpreter(bash.sandbox)
    bash.execute("X=1; echo data > shared")
    assert other.execute("echo $X; cat /tmp/w/shared").output == b"\ndata\n"
    other.execute("exit")
    assert output_of(bash, "echo $X") == "1\n"
    other.close()


def test_a_trap_that_ends_each_shell_at_its_start_is_not_kept(bash: BashInterpreter) -> None:
    """Else each next shell would end as well, and one would seem to be missing in the sandbox."""
    done = bash.execute("shopt -s extdebug; trap 'exit 3' DEBUG")
    assert done.info["restarted"] is True and "lost" in done.notes[0]
    for number in range(3):
        done = bash.execute(f"echo {number}")
        assert (done.output, done.ok) == (b"%d\n" % number, True)
