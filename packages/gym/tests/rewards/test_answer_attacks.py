"""Outputs that hold a right answer and do not give it: messages, hedges, several candidates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import intercode
from databases.upstream import UPSTREAM, needs_upstream
from intercode.datasets import nl2bash
from intercode.rewards.answer_types import AnswerType
from intercode.rewards.error_messages import drop_complaints, is_message
from intercode.rewards.quantities import QuestionWords, parse_choice, parse_quantity
from intercode.task import CANNOT, Dataset, Task

MESSAGES: list[str] = json.loads(Path(__file__).with_name("tool_messages.json").read_text())
"""Real error messages of some hundred programs."""
QUERY = (
    "Count the lines of all files in /srv/data that are not smaller than one or two of 9 blocks."
)
"""Its negations, comparisons and numbers are not to count when an answer repeats them."""


def answer(type_: str, query: str = QUERY, **options: object) -> AnswerType:
    found = AnswerType.parse(Task("t", query, metadata={"answer": {"type": type_, **options}}))
    assert found is not None
    return found


COUNTS = [{"name": "path", "type": "path"}, {"name": "count", "type": "number"}]
HASHES = [{"name": "hash", "type": "text"}]
ONE, TWO, THREE = "a" * 32, "b" * 32, "c" * 32
GOLDS: list[tuple[AnswerType, str]] = [
    *((answer("number"), str(number)) for number in (*range(11), 13, 26, 127, "4.18")),
    *((answer("yes-no"), word) for word in ("yes", "no", "true", "false")),
    *(
        (answer("paths", names=names), "/srv/data/a.txt\n/srv/data/nosuch")
        for names in (True, False)
    ),
    (answer("path"), "/srv/data/nosuch"),
    (answer("paths"), "nosuch"),
    (answer("lines"), "nosuch"),
    (answer("lines"), "5"),
    (answer("table", columns=COUNTS), "5 nosuch"),
    (answer("table", columns=HASHES), ONE),
    (answer("table", columns=[{"name": "folder", "type": "path"}]), "removed nosuch"),
]


def test_through_the_environment() -> None:
    tasks = [
        Task("count", "How many lines has a?", gold=("echo 1",), metadata={"answer": "number"}),
        Task("is", "Is there a file b?", gold=("echo no",), metadata={"answer": "yes-no"}),
    ]
    wrong = {
        "count": (
            "awk '{'",
            "sh -c nosuch",
            "echo about 1",
            "echo 1 or 2",
            "echo 1 GB",
            "echo '>1'",
        ),
        "is": ("sh -c nosuch", "echo yes or no", "echo absent", "cat b", "echo not yes"),
    }
    env = intercode.make("bash", data=Dataset(tasks))
    try:
        for task in tasks:
            for action in (*wrong[task.task_id], *task.gold):
                env.reset(options={"task_id": task.task_id})
                env.step(action)
                assert (env.step("submit")[1] == 1.0) == (action in task.gold), action
    finally:
        env.close()


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_no_answer(message: str) -> None:
    lines = drop_complaints([line for line in message.split("\n") if line.strip()])
    assert not lines or any(map(is_message, lines))
    assert parse_quantity(lines, QuestionWords.parse(QUERY)) is None
    for type_, gold in GOLDS:
        assert not type_.is_equivalent(gold, message), (type_.type, gold)


@needs_upstream
def test_no_message_is_a_number_in_any_question_of_the_release() -> None:
    tasks = [task for task in nl2bash.load(UPSTREAM, reviewed=True) if CANNOT not in task.metadata]
    outputs = [[line for line in text.split("\n") if line.strip()] for text in MESSAGES]
    for question in {QuestionWords.parse(task.query) for task in tasks}:
        for lines in outputs:
            assert parse_quantity(lines, question) is None, lines
            assert parse_choice(lines, question) is None, lines


@pytest.mark.parametrize(
    "text", ["/srv/data: 3", "8 /srv/data/a.txt", "git: 3", "file 12", "removed x"]
)
def test_what_is_no_message(text: str) -> None:
    assert not is_message(text)


HEDGES = r"""
certainly not {}
not {}
never {}
{} is wrong
no, {}
it isn't {}
none of {}
{} (incorrect)
{}? no
anything but {}
everything except {}
hardly {}
un-{}
!{}
!= {}
less than {}
>{}
> {}
<{}
about {}
~{}
at least {}
at most {}
{}+
{} or so
{} or more
under {}
over {}
up to {}
{}-ish
{}ish
nearly {}
some {}
around {}
{} give or take
{} at a guess
no more than {}
more than {} files
>={}
±{}
{}±1
below {}
within {}
fewer than {} lines
from {}
roughly {}
{}..
{}...
perhaps {}
I think {}
{}?
as many as {}
exceeding {}
the answer is anything: {}
guess: {}
exit status {}
line {}
error {}
{} short
twice {}
half of {}
minus {}
{} and counting
{} to go
one more than {}
two {}
{} of 9
zero {}
{} dozen
"""
UNITS = r"""
{} GB
{} MB
{}%
{} percent
{}K
{} days
{} thousand
{}k
{}M
{} seconds
{}e3
${}
{}/s
{} KiB
{}th
1/{}
{}!
{}^2
0x{}
{}*1
-{}
{}.9
1{}
{},0
v{}
10.0.0.{}
2023-01-0{}
12:0{}
/srv/{}
{}.txt
"""
CANDIDATES = r"""
{} or 12
{} 12
{}\n12
{}, 12
{}/12
{}-12
{}..12
0 1 2 3 {}
{} (12)
12 {}
{} and 12
{}|12
{} = 12
{} {}
{}\n{}
{} five
{}:12
[{}, 12]
{} files, 12 lines
{}x12
line 12: {}
/srv/data 12 {}
{} /6
{} ./6
/6 {}
{} /a /b
{} and
- {}
"""


def forms(text: str) -> list[str]:
    return [form.replace("\\n", "\n") for form in text.strip().splitlines()]


@pytest.mark.parametrize("form", [*forms(HEDGES), *forms(UNITS), *forms(CANDIDATES)])
def test_a_hedged_number_is_none(form: str) -> None:
    for number in ("1", "2", "5", "55", "185", "9999"):
        assert not answer("number").is_equivalent(number, form.replace("{}", number)), number


WORDS = ("not", "or", "than", "some", "two", "maybe", "x", "error", "?", "<", "~", "and/or",
    "unless", "5", "GB", "command", "wrong")  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=3), st.lists(st.sampled_from(WORDS), max_size=3))
def test_no_word_but_of_the_question_stands_beside_a_number(
    before: list[str], after: list[str]
) -> None:
    text = " ".join([*before, "5", *after])
    assert answer("number").is_equivalent("5", text) == (not before and not after)


@given(st.integers(0, 10**12))
def test_the_forms_of_a_number(number: int) -> None:
    for form in ("{}", " {}\n", "{} lines", "There are {} lines.", "lines: {}", "/srv/data/a: {}",
                 "{} /srv/data/a.txt", "The total number of lines is {}.", "Total: {}", "{} -",
                 "Number of lines in all files in /srv/data: {}", "count={}",
                 "{} a.txt"):  # fmt: skip
        assert answer("number").is_equivalent(str(number), form.replace("{}", str(number))), form


@pytest.mark.parametrize(
    ("query", "gold", "text", "same"),
    [
        ("How large is /a in bytes?", "185", "185 bytes", True),
        ("How large is /a in bytes?", "185", "185 KB", False),
        ("How large is /a?", "5GB", "5 MB", False),
        ("How large is /a?", "5GB", "5 gigabytes", True),
        ("How large is /a?", "5GB", "5", False),
        ("The space on /a in megabytes", "1024M", "1024", True),
        ("The space on /a in megabytes", "1024M", "1024K", False),
        ("What percentage of the disk is used?", "12%", "12", True),
        ("Count the files", "12", "12%", False),
        ("The mean", "5.33", "5.333333", True),
        ("The mean", "5.33", "5.335", True),
        ("The mean", "5.33", "5.3351", False),
        ("The mean", "5.33", "5.34", False),
        ("The mean", "5.33", "5", False),
        ("Count the files", "5", "5 lines", False),
        ("Count the files", "5", "5 files", True),
    ],
)
def test_units_and_decimals(query: str, gold: str, text: str, same: bool) -> None:
    assert answer("number", query).is_equivalent(gold, text) is same


NEITHER = r"""
yes or no
yes/no
yes no
no yes
is
exists
absent
is absent
it is
found
not found
0
1
y
n
true false
yes?
maybe yes
yes if so
not yes
not true
not false
cannot
nothing
yes\nno
no\nno
yesno
[yes|no]
yes(no)
false alarm: true
bash: yes: command not found
/bin/no
no.txt
no errors
yes, not
no idea
no wait
is not
true or not
"""


@pytest.mark.parametrize("text", forms(NEITHER))
@pytest.mark.parametrize("gold", ["yes", "no"])
def test_what_says_neither(gold: str, text: str) -> None:
    assert not answer("yes-no").is_equivalent(gold, text)


@pytest.mark.parametrize(
    "text", ["Yes.", "yes", "TRUE", "yes, it is", "Answer: yes", "It is true."]
)
def test_what_says_yes(text: str) -> None:
    assert answer("yes-no").is_equivalent("yes", text) and not answer("yes-no").is_equivalent(
        "no", text
    )
    assert answer("yes-no").is_equivalent("The file is there", "the file  is there\n")
    assert not answer("yes-no").is_equivalent("The file is there", text)


PATHS = "/srv/data/x/a\n/srv/data/b"
WRONG_PATHS = r"""
x/a\nb\nc
x/a
a\nb
/data/x/a\n/data/b
/srv/data/x/a not\n/srv/data/b
/srv/data/x/a: wrong\n/srv/data/b: wrong
/srv/data/x/a: Permission denied\n/srv/data/b: Permission denied
/srv/data/x/a: not found\n/srv/data/b: not found
cat: /srv/data/x/a\ncat: /srv/data/b
maybe /srv/data/x/a\nmaybe /srv/data/b
!/srv/data/x/a\n!/srv/data/b
.
*
/srv/data/x/a /etc\n/srv/data/b /etc
/srv/data/x/a or /srv/data/b
/srv/data/x/a?\n/srv/data/b?
/srv/data
bash: /srv/data/x/a: No such file or directory\nbash: /srv/data/b: No such file or directory
"""


@pytest.mark.parametrize("text", forms(WRONG_PATHS))
def test_other_paths(text: str) -> None:
    assert not answer("paths").is_equivalent(PATHS, text)


@pytest.mark.parametrize(
    "text",
    [
        "x/a\nb",
        "./x/a\n./b",
        "data/x/a\ndata/b",
        "b x/a",
        "srv/data/b\nsrv/data/x/a",
        "/srv/data/x/a:a line\n/srv/data/b:3: a line",
        "5 /srv/data/b\n1 /srv/data/x/a",
    ],
)
def test_forms_of_paths(text: str) -> None:
    assert answer("paths").is_equivalent(PATHS, text)


def test_a_word_of_the_question_is_no_path() -> None:
    query = 'Search for the folder "mysql" everywhere.'
    assert not answer("path", query).is_equivalent("/opt/db/mysql", "mysql")
    assert answer("path", query).is_equivalent("/opt/db/mysql", "opt/db/mysql")


@pytest.mark.parametrize(
    ("columns", "gold", "text", "same"),
    [
        (HASHES, f"{ONE}\n{TWO}", f"{ONE}  /wrong\n{TWO}  /wrong", False),
        (HASHES, f"{ONE}  /a\n{TWO}  /b", f"{ONE}  /b\n{TWO}  /a", False),
        (HASHES, f"{ONE}  /a\n{TWO}  /b", f"{TWO}  b\n{ONE}  a", True),
        (HASHES, f"{ONE}  /a\n{TWO}  /b", f"{TWO}\n{ONE}", True),
        (HASHES, ONE, f"{ONE} {TWO} {THREE}", False),
        (HASHES, ONE, f"{TWO} {ONE}", False),
        (HASHES, ONE, f"not {ONE}", False),
        (COUNTS, "3 /a/b\n4 /a/c", "3 4 5 /a/b\n4 5 6 /a/c", False),
        (COUNTS, "3 /a/b\n4 /a/c", "3 /a/b /x\n4 /a/c /x", False),
        (COUNTS, "3 /a/b\n4 /a/c", "3G /a/b\n4G /a/c", False),
        (COUNTS, "3 /a/b\n4 /a/c", "about 3 /a/b\nabout 4 /a/c", False),
        (COUNTS, "3 /a/b\n4 /a/c", "/a/b has 3 or 4\n/a/c has 3 or 4", False),
        (COUNTS, "3 /a/b\n4 /a/c", "/a/b: 3 files\n/a/c: 4 files", True),
        (COUNTS, "3 /a/b\n4 /a/c", "/a/b,3\n/a/c,4", True),
        (COUNTS, "3 /a/b\n4 /a/c", "--\n;", False),
    ],
)
def test_what_stands_beside_cells(columns: object, gold: str, text: str, same: bool) -> None:
    assert answer("table", columns=columns).is_equivalent(gold, text) is same


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("1:x y\n2:z", True),
        ("/srv/data/a:x y\n/srv/data/b:1:z", True),
        ("/etc/a:x y\n/etc/b:z", False),
        ("a.c:x y\nb.c:z", False),
        ("2:x y\n1:z", False),
        ("9 x y\n9 z", False),
        ("0:x y\n0:z", False),
        ("no: x y\nno: z", False),
        ("grep: x y\ngrep: z", False),
        ("x y z", False),
    ],
)
def test_places_before_lines(text: str, same: bool) -> None:
    assert answer("lines").is_equivalent("x y\nz", text) is same


def test_a_wrong_total() -> None:
    for total in ("optional", "needed"):
        table = answer("table", columns=COUNTS, total=total)
        assert table.is_equivalent("3 /a\n4 /b\n7 total", "4 /b\n3 /a\n7 total")
        assert not table.is_equivalent("3 /a\n4 /b\n7 total", "4 /b\n3 /a\n9 total")
        assert not table.is_equivalent("3 /a\n4 /b\n7 total", "4 /b\n3 /a\n7 total\n9 total")


def test_names_beside_other_folders() -> None:
    names = answer("paths", names=True)
    assert names.is_equivalent("/srv/data/a\n/srv/data/x/b", "x/b\na")
    for text in ("/etc/a\n/etc/b", "!/srv/data/a\n!/srv/data/x/b", "5:/srv/data/a\n5:/srv/data/x/b",
                 "not:\na\nb"):  # fmt: skip
        assert not names.is_equivalent("/srv/data/a\n/srv/data/x/b", text)
