"""Wrong answers for `validate`, built from the words of a task's verification.

An agent that knows the verification may create files under the names that it uses: links to a
program's own arguments or input, links to a temporary file of the verification, programs that
always succeed. A verification that accepts one of these answers judges nothing. Each trick creates
only names that do not exist yet.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from intercode.envs.traits import Guess

if TYPE_CHECKING:
    from intercode.task import Task

_WORD = re.compile(r"[\w./~+@%-]+", re.ASCII)
_TEMPORARY = re.compile(r"/(tmp|var/tmp|dev/shm)/")
_SCRIPT = """
shopt -s nullglob
for name in {names}; do
    case $name in "~/"*) name=$HOME/${{name#"~/"}};; esac
    [ -e "$name" ] || [ -L "$name" ] && continue
    mkdir -p -- "$(dirname -- "$name")" && {make}
done 2> /dev/null
true
"""
_LINK = 'ln -s -- {target} "$name"'
_PROGRAM = """{
        case $name in */*) continue;; esac
        command -v "$name" > /dev/null && continue
        mkdir -p /usr/local/bin; program=/usr/local/bin/$name
        printf '#!/bin/sh\\n' > "$program"; chmod 755 "$program"
    }"""
NO_PROGRAM = "no program of the verification's is the agent's"
"""The last words of the spy trick's output if no program qualifies."""
_SPY = r"""
for program in {names}; do
    case $program in "~/"*) program=$HOME/${{program#"~/"}};; esac
    case $(realpath -- "$program") in /bin/*|/sbin/*|/usr/bin/*|/usr/sbin/*) continue;; esac
    [ -f "$program" ] && [ -x "$program" ] || continue
    mv -- "$program" "$program.spied" || continue
    cat > "$program" <<'END'
#!/bin/bash
out=$("$0.spied" "$@" 2> /dev/null; printf x$?)
code=${{out##*x}} out=${{out%x*}}
[ ${{#out}} -gt 3 ] || exit 1
tell() {{ [ "${{1%$'
'}}" = "${{out%$'
'}}" ] && printf %s "$out" && exit "$code"; }}
while IFS= read -rd '' line; do tell "${{line#*=}}"; done < <(env -0)
for folder in . /tmp /var/tmp /dev/shm "${{@%/*}}"; do
    while IFS= read -rd '' file; do
        for given; do [ "$file" -ef "$given" ] && continue 2; done
        tell "$(cat -- "$file" 2> /dev/null)"
    done < <(find "$folder" -xdev -maxdepth 3 -type f -newer "$0" -size -99 -print0 2> /dev/null)
done
exit 1
END
    chmod 755 "$program" && is_spied=1
done 2> /dev/null
[ "$is_spied" ] || echo "{nothing}"
"""
_LINKS = ("/proc/self/cmdline", "/dev/stdin", "/dev/fd/63")
_MAX_NAMES = 100
"""Maximum number of words of a verification that count as names."""


def tricks(language: str) -> Sequence[Guess]:
    """Return the tricks for an environment with actions in this language."""
    if language not in ("bash", "python"):
        return ()
    is_shell = language == "bash"

    def guess(name: str, command_template: str) -> Guess:
        return Guess(name, lambda task: _actions(task, command_template, language), role="trick")

    links = [
        guess(f"links to {target} at its names", _LINK.format(target=target)) for target in _LINKS
    ]
    return (
        *links,
        guess("links to its temporary file at its names", _LINK.format(target="{temporary}")),
        guess("programs of its names that exit with 0", _PROGRAM),
        *([Guess("a program that finds its output in a file", _spy, role="trick")] * is_shell),
    )


def _spy(task: Task) -> tuple[str, ...]:
    """Return gold, and a script that replaces each of the agent's programs in the verification.

    The replacement prints the original's output if a file or a variable contains it. In that case
    another program could print the output without computing it.
    """
    if task.verification is None or not task.gold:
        return ()
    names = " ".join(map(shlex.quote, _words(task.verification)))
    return task.gold[0], _SPY.format(names=names, nothing=NO_PROGRAM)


def alternatives(tasks: Sequence[Task]) -> Sequence[Guess]:
    """Return a guess for each position: all first alternative solutions, all second ones, …"""
    max_solutions = max((len(_solutions(task)) for task in tasks), default=0)

    def guess(index: int) -> Guess:
        def actions(task: Task) -> tuple[str, ...]:
            solutions = _solutions(task)
            return solutions[index] if index < len(solutions) else ()

        return Guess(f"alternative solution {index + 1}", actions, role="alternative")

    return [guess(number) for number in range(max_solutions)]


def _solutions(task: Task) -> list[tuple[str, ...]]:
    """Return the solutions in a task's metadata; each is an action, or a list of actions.

    Data of another shape gives no solutions, because the field then has another meaning.
    """
    alternatives = task.metadata.get("alternatives")
    if not isinstance(alternatives, list | tuple):
        return []
    solutions = [(entry,) if isinstance(entry, str) else entry for entry in alternatives]
    are_actions = all(
        isinstance(solution, list | tuple) and all(isinstance(entry, str) for entry in solution)
        for solution in solutions
    )
    return [tuple(solution) for solution in solutions] if are_actions else []


def _words(verification: str) -> list[str]:
    matches = _WORD.findall(verification)
    return [*dict.fromkeys(word for word in matches if word[0] != "-" and not word.isdecimal())]


def _actions(task: Task, command_template: str, language: str) -> tuple[str, ...]:
    if task.verification is None:
        return ()
    words = _words(task.verification)
    temporary = next(filter(_TEMPORARY.match, words), None)
    if "{temporary}" in command_template:
        if temporary is None:
            return ()
        command_template = command_template.format(temporary=shlex.quote(temporary))
    names = [word for word in words if word != temporary or command_template == _PROGRAM][
        :_MAX_NAMES
    ]
    script = _SCRIPT.format(names=" ".join(map(shlex.quote, names)), make=command_template)
    if language == "bash":
        return (script,)
    return (f"import subprocess\nsubprocess.run(['bash', '-c', {script!r}])",)
