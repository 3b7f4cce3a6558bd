"""What may be written: bash reads it as it would at a prompt, and the next action is never lost."""

from __future__ import annotations

import pytest

from intercode.errors import ActionError
from intercode.interpreters.bash import BashInterpreter
from waiting import PATIENCE


def output_of(bash: BashInterpreter, action: str) -> str:
    return bash.execute(action, PATIENCE).output.decode()


def is_alive(bash: BashInterpreter) -> bool:
    return output_of(bash, "echo alive") == "alive\n"


@pytest.mark.case(4)
def test_the_exit_code_is_there_in_the_next_action(bash: BashInterpreter) -> None:
    assert bash.execute("(exit 7)").exit_code == 7
    assert output_of(bash, "echo $?") == "7\n"
    assert output_of(bash, "echo $?") == "0\n"
    assert bash.execute("no-such-program").exit_code == 127


@pytest.mark.case(5)
def test_lines_and_comments(bash: BashInterpreter) -> None:
    for action, expected in (
        ("echo a\necho b", "a\nb\n"),
        ("for i in 1 2\ndo\n  echo $i\ndone", "1\n2\n"),
        ("# only a comment", ""),
        ("echo a # a comment\n# another\n\necho b", "a\nb\n"),
        ("echo a\r\necho b\r", "a\r\nb\r\n"),
        ("  echo   spaced  ", "spaced\n"),
        ("echo a; echo b &&\necho c", "a\nb\nc\n"),
    ):
        done = bash.execute(action)
        assert (done.output.decode(), done.exit_code) == (expected, 0), action


@pytest.mark.case(6)
def test_an_empty_action(bash: BashInterpreter) -> None:
    for action in ("", " ", "\n\n", "\t"):
        done = bash.execute(action)
        assert (done.output, done.ok, done.notes) == (b"", True, ()), action


@pytest.mark.case(7)
def test_a_here_document(bash: BashInterpreter) -> None:
    assert output_of(bash, "cat <<E\nhi $((1 + 1))\nE\necho after") == "hi 2\nafter\n"
    assert output_of(bash, "cat <<'E'\n$HOME\nE") == "$HOME\n"


@pytest.mark.case(8)
def test_a_here_document_without_its_end(bash: BashInterpreter) -> None:
    done = bash.execute("cat <<E\nhi")
    assert done.output.endswith(b"hi\n")
    assert "timed_out" not in done.info
    assert is_alive(bash)


@pytest.mark.case(9, 10)
@pytest.mark.parametrize(
    "action",
    ["echo 'abc", 'echo "abc', "echo $(ls", 'echo "$(ls', "echo `ls", "echo ${x", "f() { echo $(ls",
     "echo $((1 +", "(echo a", "if true", "cat <(ls"],
)  # fmt: skip
def test_an_end_is_missing(bash: BashInterpreter, action: str) -> None:
    bash.execute("cat <<E\nhi\nE")  # where bash 5.2 kept a parser state that made it crash
    for _ in range(3):
        done = bash.execute(action)
        assert done.exit_code == 2, done
        assert b"unexpected" in done.output
        assert "restarted" not in done.info
        assert is_alive(bash)


@pytest.mark.case(11)
def test_a_syntax_error_on_the_second_line(bash: BashInterpreter) -> None:
    done = bash.execute("echo one\nif then\necho three")
    assert done.exit_code == 2
    assert done.output.startswith(b"one\n")
    assert b"\nbash: line 2: syntax error" in done.output, "as a script's own"
    assert b"/proc/" not in done.output
    assert b"three" not in done.output
    assert is_alive(bash)


OF_THE_PARSER = b"bash: /proc/self/fd/198: line "


@pytest.mark.parametrize("action", ["if then", "[[ a b ]]", "x=(", 'echo "', "case x in", "for"])
def test_syntax_errors_are_those_of_a_script(bash: BashInterpreter, action: str) -> None:
    done = bash.execute(action)
    assert done.output.startswith(b"bash: line ") and b"/proc/" not in done.output, done


@pytest.mark.parametrize(
    "action",
    [
        "echo '{}1: syntax error'",
        "echo '{}1: a line of a log'; (exit 2)",
        "echo 'see {}1: syntax error'; (exit 2)",
        "echo '{}1: syntax error'; false",
        "printf '%s\\n' '{}1: `x`' end; (exit 3)",
        "echo '{}1: syntax error'\nif then '{}'",
    ],
)
def test_who_prints_the_words_of_the_parser_sees_them(bash: BashInterpreter, action: str) -> None:
    """Only bash's own words about this action are told as those of a script's line."""
    words = OF_THE_PARSER.decode()
    done = bash.execute(action.replace("{}", words))
    assert done.output.count(OF_THE_PARSER) == action.count("{}"), done
    assert (b"\nbash: line 2: syntax error" in done.output) == ("if then" in action)


def test_traps_do_not_fire_for_lines_of_ours(bash: BashInterpreter) -> None:
    """But for the end of the file that is the action, see docs/development/interpreters.md#bash."""
    traps, action = "trap 'echo E' ERR; trap 'echo D' DEBUG", "false; true"
    bash.sandbox.write_file("/tmp/script", f"{traps}\n{action}\n".encode())
    alone = bash.sandbox.exec(["bash", "/tmp/script"]).stdout
    bash.execute(traps)
    assert bash.execute(action).output == alone
    bash.execute("trap 'echo R' RETURN")
    assert bash.execute(action).output == alone + b"D\nR\n"


@pytest.mark.case(12)
def test_a_backslash_at_the_end(bash: BashInterpreter) -> None:
    done = bash.execute("echo a \\")
    assert done.exit_code == 0
    assert done.output.startswith(b"a")
    assert is_alive(bash)


@pytest.mark.case(13)
def test_return_and_break_outside_of_anything(bash: BashInterpreter) -> None:
    assert bash.execute("return 5").exit_code == 5
    for action in ("break", "continue"):
        assert b"only meaningful" in bash.execute(action).output
    assert is_alive(bash)


@pytest.mark.case(54)
def test_a_nul_is_refused(bash: BashInterpreter) -> None:
    with pytest.raises(ActionError):
        bash.execute("echo a\0b")
    with pytest.raises(ValueError, match="NUL"):
        bash.execute("\0")
    assert is_alive(bash)


@pytest.mark.case(55)
@pytest.mark.parametrize("size", [200 << 10, 1 << 20])
def test_a_long_action(bash: BashInterpreter, size: int) -> None:
    assert output_of(bash, "x=" + "a" * size + "; echo ${#x}") == f"{size}\n"
    lines = size // 8
    assert output_of(bash, "n=0\n" + "((++n))\n" * lines + "echo $n") == f"{lines}\n"


@pytest.mark.case(56)
def test_a_too_long_argument_list(bash: BashInterpreter) -> None:
    done = bash.execute("/bin/echo $(seq 1 500000)", PATIENCE)
    assert done.exit_code == 126
    assert b"Argument list too long" in done.output
    assert is_alive(bash)


@pytest.mark.case(57)
def test_odd_file_names(bash: BashInterpreter) -> None:
    odd = [b"new\nline", b"\xff\xfe", b"-rf", b" space ", b"'quote\"", b"$(x)", b"n" * 255]
    for name in odd:
        quoted = "$'" + "".join(f"\\x{byte:02x}" for byte in name) + "'"
        assert bash.execute(f"touch -- {quoted}").exit_code == 0
    done = bash.execute(r"find . -mindepth 1 -printf '%f\0'")
    assert sorted(done.output.split(b"\0")[:-1]) == sorted(odd)
    directory = "$'a\\nb\\xff'"
    done = bash.execute(f"mkdir {directory}; cd {directory}; exit")
    assert done.info["cwd"] == "/tmp/w/a\nb\udcff"
    assert bash.execute("pwd").output == b"/tmp/w/a\nb\xff\n"


def test_an_action_with_invalid_utf_8(bash: BashInterpreter) -> None:
    assert bash.execute("printf %s '\udcff'").output == b"\xff"


def test_lines_of_windows_are_named_where_an_action_fails(bash: BashInterpreter) -> None:
    failed = bash.execute("if true; then\r\necho b\r\nfi\r\n")
    assert failed.notes == (
        "lines of this action end with a carriage return, which bash takes for a character",
    )
    assert bash.execute("printf 'a\r\nb' | wc -c").notes == ()
    assert bash.execute("false").notes == ()
