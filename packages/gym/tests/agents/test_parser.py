"""What a model meant: found, and never changed."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from intercode.agents.parser import TAGS, blocks, find_code
from intercode.agents.strategies import read_plan, split

LANGUAGES = sorted(TAGS)
NO_FENCE = st.characters(blacklist_characters="`~\r", blacklist_categories=["Cs"])
CODE = st.text(NO_FENCE, min_size=1).filter(str.strip)
PROSE = st.text(NO_FENCE)


@given(CODE, PROSE, PROSE, st.sampled_from(LANGUAGES), st.data())
def test_a_block_is_found_as_it_stands(
    code: str, before: str, after: str, language: str, data: st.DataObject
) -> None:
    tag = data.draw(st.sampled_from(["", *sorted(TAGS[language])]))
    fence = data.draw(st.sampled_from(["```", "````", "~~~"]))
    text = f"{before}\n{fence}{tag}\n{code}\n{fence}\n{after}"
    assert find_code(text, language) == code
    assert find_code(text, language, cut_off=True) == code


@given(st.text(alphabet=st.sampled_from("`~ab \n{}:'\"\\submit"), max_size=60))
@example("` `")  # found by chance
@pytest.mark.parametrize("language", LANGUAGES)
def test_whatever_is_said_what_is_found_is_part_of_it(language: str, text: str) -> None:
    found = find_code(text, language)
    if found is None:
        return
    assert found.strip()
    # But for the indentation of the list that a fence stands in, not a character is changed.
    said = [line.strip() for line in text.split("\n")]
    lines = [line.strip() for line in found.split("\n")]
    assert all(any(line in other for other in said) for line in lines)
    assert found in text or any(block.code == found for block in blocks(text, language))


@given(CODE, st.sampled_from(LANGUAGES))
def test_an_open_block_is_code_only_of_a_whole_reply(code: str, language: str) -> None:
    for text in (f"So:\n```{language}\n{code}", f"So:\n<{language}>\n{code.strip()}"):
        assert find_code(text, language) == (code if "```" in text else code.strip())
        assert find_code(text, language, cut_off=True) is None


@given(st.text(), st.text())
def test_nothing_that_is_said_breaks_the_readers(text: str, more: str) -> None:
    for language in LANGUAGES:
        find_code(text, language)
    split(f"{text}\nAction: {more}")
    read_plan(f"{text}\n1. {more}")


@pytest.mark.parametrize(
    ("language", "text", "found"),
    [
        ("bash", "Sure:\n```bash\nls -la\n```\nThis lists.", "ls -la"),
        ("bash", "```\nawk 'END{print NR}' f\n```", "awk 'END{print NR}' f"),
        ("bash", "```ls -la```", "ls -la"),
        ("bash", "```bash ls -la```", "ls -la"),
        ("bash", "```bash\nls```", "ls"),
        ("bash", "```bash {.line}\nls\n```", "ls"),
        ("bash", "1. so\n   ```sh\n   cat <<E\n     x\n   E\n   ```", "cat <<E\n  x\nE"),
        (
            "bash",
            "````bash\ncat > a.md <<E\n```\nx\n```\nE\n````",
            "cat > a.md <<E\n```\nx\n```\nE",
        ),
        ("bash", "```json\n{}\n```\n```sh\npwd\n```", "pwd"),
        ("bash", "```\nfirst\n```\n```bash\nsecond\n```", "second"),
        ("bash", "```bash\nfirst\n```\nor\n```bash\nsecond\n```", "first"),
        ("bash", "```bash\n\n```\n```bash\nls\n```", "ls"),
        ("bash", "```python\nprint(1)\n```", None),
        ("bash", "```\n\n```", None),
        ("bash", "", None),
        ("bash", "I think it is done now.", None),
        ("bash", "The answer: 5 files.", None),
        ("bash", "Run `ls -la`.", "ls -la"),
        ("bash", "Either `ls` or `pwd`.", None),
        ("bash", "ls -la", "ls -la"),
        ("bash", "<think>\n```bash\nrm -r /\n```\n</think>\n```bash\nls\n```", "ls"),
        ("bash", "<think>```bash\nrm -r /\n```", None),
        ("bash", "cd /x && ls\nfind .", "cd /x && ls\nfind ."),
        ("bash", "echo `date`", "echo `date`"),
        ("bash", "Command: find . -name x", "find . -name x"),
        ("bash", "All done.\nsubmit", "submit"),
        ("bash", "```text\nsubmit\n```", "submit"),
        ("bash", "submit flag{a b}", "submit flag{a b}"),
        ("bash", "I cannot do this.\nskip", "skip"),
        ("sql", "select 1;", "select 1;"),
        ("sql", "**SQL:** SELECT 2", "SELECT 2"),
        ("sql", "The query is `SELECT 1`", "SELECT 1"),
        ("sql", "```mysql\nSELECT 'End';\n```", "SELECT 'End';"),
        ("sql", "I do not know.", None),
        ("python", "def f(x):\n    return 1", "def f(x):\n    return 1"),
        ("python", "re.sub('\\d', '', x)", "re.sub('\\d', '', x)"),
        ("python", "Here is the thing", None),
        ("python", "\0", None),
        # How today's models write.
        ("bash", "```bash\r\nls\r\npwd\r\n```\r\n", "ls\npwd"),
        ("bash", "```bash\nprintf 'a\r\n'\nls\n```", "printf 'a\r\n'\nls"),
        ("bash", "\ufeff```bash\nls\n```", "ls"),
        ("bash", "\u200b```bash\u200b\necho '\u200b'\n```", "echo '\u200b'"),
        ("bash", "<thinking>\n```bash\nrm x\n```\n</thinking>\n```bash\nls\n```", "ls"),
        ("bash", "```bash:run.sh\nls\n```", "ls"),
        ("bash", "```bash ls -la\n```", "ls -la"),
        ("bash", "```ls -la\n```", "ls -la"),
        ("bash", "```shell-session\n$ ls\na  b\n$ diff a b\n< x\n> y\n```", "ls\ndiff a b"),
        ("bash", "```console\n$ cat <<E\n> hi\n> E\nhi\n```", "cat <<E\nhi\nE"),
        ("bash", "$ ls -la", "ls -la"),
        ("bash", "```bash\n$HOME/x\n```", "$HOME/x"),
        (
            "python",
            "```python\n>>> def f():\n...     return 1\n...\n>>> f()\n1\n```",
            "def f():\n    return 1\nf()",
        ),
        (
            "bash",
            "```bash\ncat > a.md <<'E'\n```py\n1\n```\nE\nls\n```\nDone.",
            "cat > a.md <<'E'\n```py\n1\n```\nE\nls",
        ),
        ("bash", "```bash\ncat <<E\nx\n```\nBetter:\n```bash\ncat <<E\nx\nE\n```", "cat <<E\nx"),
        ("bash", "```bash\necho $((1 << n))\n```\n```bash\nls\n```", "echo $((1 << n))"),
        (
            "python",
            '```\ndef f():\n    """\n    ```\n    x\n    ```\n    """\n```\nSo.\n```\nx\n```',
            'def f():\n    """\n    ```\n    x\n    ```\n    """',
        ),
        ("python", '```python\nx = """\n```\nOr:\n```python\nx = """a"""\n```', 'x = """'),
        ("bash", "All done.\n\n**submit**", "submit"),
        ("bash", "```text\nThere are 5.\n```\nsubmit 5", "submit 5"),
        ("bash", "```text\nThere are 5.\nsubmit 5", None),
        ("bash", '{"name": "bash", "arguments": {"command": "ls"}}', None),
        ("bash", "{ ls; pwd; }", "{ ls; pwd; }"),
        ("bash", "I look.\n<execute_bash>\nls -la\n\npwd\n</execute_bash>\nThen.", "ls -la\n\npwd"),
        ("bash", "<bash>ls</bash>\n<bash>pwd</bash>", "ls"),
        ("bash", "<execute_bash>\nls", "ls"),
        ("bash", "<execute_ipython>\nls()\n</execute_ipython>", None),
        ("python", "<execute_ipython>\nf(1)\n</execute_ipython>", "f(1)"),
        ("bash", "Use <bash>ls</bash> there.\n```\npwd\n```", "pwd"),
        ("bash", "grep '<sh>' f", "grep '<sh>' f"),
        ("sql", "-- all of them\nSELECT 1", "-- all of them\nSELECT 1"),
        ("sql", "/* a */ /* b */ SELECT 1", "/* a */ /* b */ SELECT 1"),
        ("sql", "Here it is:\n\nSELECT a\nFROM t;\n\nIt gives a.", "SELECT a\nFROM t;"),
        ("sql", "Show me the tables first. I need to know.", None),
        ("sql", "With this in mind, I would use a join.", None),
    ],
)
def test_examples(language: str, text: str, found: str | None) -> None:
    assert find_code(text, language) == found


@pytest.mark.parametrize(
    ("text", "thought", "action"),
    [
        ("Thought: hm\nAction:\n```sql\nx\n```", "hm", "\n```sql\nx\n```"),
        ("Action:\n```\nThought: x\n```\nAction: ls", "", "\n```\nThought: x\n```"),
        ("Thought 1: hm\nAction 1: execute[SELECT a[1]]", "hm", "```\nSELECT a[1]\n```"),
        ("Thought: a\nAction: submit\nObservation: 1\nThought: b\nAction: ls", "a", "submit\n"),
        ("Thought: a\nAction: one\nThought: b\nAction: two", "a", "one\n"),
        ("**Thought:** a\n**Action:** ls", "a", "ls"),
        (
            "Action:\n```bash\ncat <<E\n```\nx\n```\nE\n```\nObservation: 1\n```bash\nls\n```",
            "",
            "\n```bash\ncat <<E\n```\nx\n```\nE\n```",
        ),
        ("just text", "", "just text"),
    ],
)
def test_react(text: str, thought: str, action: str) -> None:
    assert split(text) == (thought, action)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("Plan:\n1. Look.\n2. Do\nit.\n\nGood luck!", ["Look.", "Do\nit."]),
        ("Step 1: a\nStep 2: b", ["a", "b"]),
        ("1) a\n  2) b 3. c", ["a", "b 3. c"]),
        ("**1.** a", ["a"]),
        ("I have none.", []),
    ],
)
def test_plans(text: str, steps: list[str]) -> None:
    assert read_plan(text) == steps
