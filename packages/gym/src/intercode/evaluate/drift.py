"""Drift between two runs: tasks, environment, images, tools, code and machine, compared."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from intercode.errors import ImageError, RecordError, UsageError
from intercode.evaluate.manifest import flat
from intercode.records import diff
from intercode.redaction import Redactor
from intercode.spec import identified
from intercode_sandbox.images.base import parse
from intercode_sandbox.images.cache import ImageCache
from intercode_sandbox.images.host import SPEC as HOST, changes
from intercode_sandbox.units import format_count, format_names

RUN = ("dataset", "env", "agent", "seed", "excluded")
"""Facts of a run as a whole that are compared."""
SESSION = ("versions", "host", "sandbox", "tools")
"""Facts of each session that are compared."""
_NOT_COMPARED = (
    *("dataset.name", "dataset.source", "dataset.tasks", "host.cpus"),
    "versions.commit",
)
"""Facts that change nothing by themselves: datasets, images and the code have digests."""
_BACKEND = "env.sandbox"
_OPTIONS = "env.options"
_ENV_CODE = "env.code.env"
_RESCORED = "rescored"
_IMAGES = "env.images."
_NAME_OF = {
    "agent.digest": "agent.name",
    "env.reward_digest": "env.reward",
    f"{_RESCORED}.digest": f"{_RESCORED}.reward",
}
"""Digest of a file of the user's → the reference to something in it."""
_FILES = ("agent.name", "agent.options", "env.reward")
"""Names or files; of files only the name is compared, as what is in them has a digest."""
_FOLDERS = re.compile(r"(?:^|(?<=\+)|(?<=[a-z]:))(?!//)(?:~|\.{1,2})?/(?:[^+/]+/)*")
_MACHINE = re.compile(r"(?:env\.images|tools)\.host(?:[+.].*)?|host\.release")
"""The differences of a machine that was updated, where the image is ``host``."""
_SHOWN = 20

VERSIONS = ("env.rules", "dataset.version")
"""Versions: scores are not comparable where these differ."""

_ADVICE = (
    ("env.rules", "score the older run again: intercode rescore RUN"),
    ("dataset.version", "take the tasks of that version, or run again on those of today"),
    ("dataset", "take the tasks as they were, from {source}"),
    (
        "env.images.host",
        "programs were installed, removed or upgraded on this machine since: --accept "
        "env.images.host allows it; the images 'base' and 'debian:…' do not follow the machine",
    ),
    ("env.images", "build the image from what it was built from"),
    ("env.engine", "use the database engine that was used"),
    ("env.reward_digest", "take the reward's file as it was, or name another with --reward"),
    ("env.code", "take the file as it was"),
    ("env.judge", "leave out --judge-model and --judge-votes"),
    (_BACKEND, "leave out --sandbox, or --sandbox {recorded}"),
    ("env", "leave out the option that says otherwise"),
    ("agent.digest", "take the agent's file as it was, or name another with --agent"),
    ("agent", "leave out --agent and --recording"),
    ("seed", "leave out --seed"),
    ("excluded", "leave out --exclude"),
    ("versions.intercode", "pip install 'intercode-gym=={recorded}'"),
    ("versions.code", "git checkout {commit}"),
    ("versions.python", "use Python {recorded}"),
    ("versions", "pip install '{name}=={recorded}'"),
    (
        "tools",
        "use the image with that version; 'base' and 'debian:…' do not follow this machine",
    ),
    ("sandbox", "use a machine as it was"),
    ("host", "use a machine as it was"),
)
"""Beginning of a difference's name → what to do about it; the first that fits."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it was recorded."""

    what: str
    """The name of the fact: its place in the record, with dots."""
    recorded: Any
    """None: the record does not have it."""
    now: Any
    advice: str
    """How to bring back the recorded value."""

    def __str__(self) -> str:
        return f"{self.what}: recorded {_said(self.recorded)}, now {_said(self.now)}"


class DriftError(UsageError):
    """A run was to be made of what another one was made of, and something has changed.

    Attributes:
        differences: What has changed.
    """

    def __init__(self, differences: Collection[Difference]) -> None:
        self.differences = list(differences)
        lines = [f"  {found}\n    to fix it: {found.advice}" for found in self.differences]
        if len(lines) > _SHOWN:
            lines[_SHOWN:] = [f"  … and {len(lines) - _SHOWN} more (--json has them all)"]
        count = format_count(len(self.differences), "thing")
        text = "\n".join(lines)
        super().__init__(
            f"{count} would not be as in the recorded run:\n{text}\n"
            "What makes no difference to you can be accepted by its name, or the beginning of it: "
            f"--accept {self.differences[0].what.partition('.')[0]}"
        )


def differences(
    recorded: Mapping[str, Any], now: Mapping[str, Any], accept: Collection[str] = ()
) -> list[Difference]:
    """List what differs between two runs, by their ``run.json``.

    A run that several sessions have worked on is held to all of them: if they differ among
    themselves, nothing is the same as all of it.

    Args:
        recorded: The ``run.json`` of one.
        now: That of the other.
        accept: Names that may differ, or beginnings of names: ``host``, ``tools.host.git``.
    """
    found: dict[tuple[str, str], Difference] = {}
    clean = Redactor().facts  # what is recorded has no secrets
    for one, other in product(_facts(clean(recorded)), _facts(clean(now))):
        # What another back end says of itself would only repeat that it is another one.
        same = one.get(_BACKEND) == other.get(_BACKEND)
        may_differ = accept if same else (*accept, "sandbox")
        if one.get("env.reward") != other.get("env.reward"):  # another reward has other rules
            may_differ = (*may_differ, "env.rules")
        digests, versions = (
            [facts.get(f"dataset.{name}") for facts in (one, other)]
            for name in ("digest", "version")
        )
        if None in versions and digests[0] == digests[1]:  # a record from before versions
            may_differ = (*may_differ, "dataset.version")
        if None in (one.get(_ENV_CODE), other.get(_ENV_CODE)):  # one from before that digest
            may_differ = (*may_differ, _ENV_CODE)
        for what, before, after in diff(one, other):
            if not _accepted(what, may_differ):
                advice = _advice(what, before, recorded)
                difference = Difference(what, before, after, advice)
                found.setdefault((what, repr(before)), difference)
    return [difference for _, difference in sorted(found.items())]


def of_machine(found: Collection[Difference], recorded: Mapping[str, Any]) -> list[Difference]:
    """Pick the differences that only say that this machine, and its image ``host``, has changed."""
    images = (recorded.get("env") or {}).get("images") or {}
    if not any(_canonical(name).partition("+")[0] == HOST for name in images):
        return []
    return [difference for difference in found if _MACHINE.fullmatch(difference.what)]


def of_versions(found: Collection[Difference]) -> list[Difference]:
    """Pick the differences between versions of rules or of datasets."""
    return [difference for difference in found if _accepted(difference.what, VERSIONS)]


def what_changed(found: Sequence[Difference]) -> list[str]:
    """Say what has changed on this machine, given differences that `of_machine` picked.

    Packages or programs are named if the image cache still has the machine's former image.
    """
    cache = ImageCache.default()
    images = [one for one in found if one.what.startswith("env.images.")]
    both = (changes(one.recorded, one.now, cache) for one in images if one.recorded and one.now)
    named = next(filter(None, both), [])
    rest = [one for one in found if not named or one.what.startswith("host.")]
    return [*named, *map(str, rest)]


def refuse(
    recorded: Mapping[str, Any], now: Mapping[str, Any], accept: Collection[str] = ()
) -> None:
    """Refuse two runs that `differences` tells apart.

    Raises:
        DriftError: There are differences.
    """
    if found := differences(recorded, now, accept):
        raise DriftError(found)


def refuse_another(recorded: Mapping[str, Any], wanted: Mapping[str, Any], folder: object) -> None:
    """Refuse to mix two different runs in one folder.

    Raises:
        RecordError: It names each setting that differs, with both values.
    """
    found = [one for one in differences(recorded, wanted) if one.what.partition(".")[0] in RUN]
    told = [(one.what.removeprefix(f"{_OPTIONS}."), one.recorded, one.now) for one in found]
    clean = Redactor().facts
    scored = [flat({_RESCORED: clean(one).get(_RESCORED)}) for one in (recorded, wanted)]
    if told := [*told, *diff(*scored)]:
        texts = [
            f"{what} was {before!r} and is now {after!r}"
            for what, before, after in told
            if _changed_file(what, recorded, wanted) is None
        ]
        files = (_changed_file(what, recorded, wanted) for what, _, _ in told)
        texts += [f"{file} has changed since" for file in dict.fromkeys(filter(None, files))]
        rules = any(_accepted(one.what, ["env.rules"]) for one in found)
        again = "; a run of another version of a rule can be scored again by 'intercode rescore'"
        raise RecordError(
            f"{folder} holds another run: {'; '.join(texts)}. Choose another folder (--out NEW), "
            f"or the settings that it was made with{again if rules else ''}"
        )


def _changed_file(what: str, recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Return the file of a digest that has changed; None if the file is another one, or no file."""
    if what.startswith(_IMAGES) and "engine" in recorded.get("env", {}):
        return f"database {what.removeprefix(_IMAGES)!r} ({what})"
    name = _NAME_OF.get(what)
    if name is None:
        return None
    before, now = (flat(run).get(name) for run in (recorded, wanted))
    if not isinstance(before, str) or not isinstance(now, str):
        return None
    files = [Path(reference.rpartition(":")[0] or reference).name for reference in (before, now)]
    return files[0] if files[0] == files[1] else None


def warning(changed: Sequence[str]) -> str:
    """Return the warning that this machine, and the image ``host``, has changed."""
    return (
        f"warning: this machine has changed since the run began, and its image 'host' with it: "
        f"{format_names(changed, _SHOWN)}. The record says so; --strict refuses it, and the "
        "image 'base' follows no machine"
    )


def of_run(
    recorded: Mapping[str, Any], now: Mapping[str, Any], machine: Collection[str] = ()
) -> dict[str, Any]:
    """Return, for a session, the accepted differences in what the record says only once.

    Args:
        recorded: The run's ``run.json``.
        now: The one that a new run would have.
        machine: What has changed on this machine; see `what_changed`.
    """
    found = {
        difference.what: difference.now
        for difference in differences(recorded, now)
        if difference.what.partition(".")[0] in RUN
    }
    found |= {"machine": list(machine)} if machine else {}
    return {"differs": found} if found else {}


def _facts(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the facts that are compared, for each session, with dotted names."""
    run = {name: identified(manifest).get(name) for name in RUN}
    env = run["env"] or {}
    if "images" in env:  # with digests, beside which the name that was given says nothing
        known = {name: fact for name, fact in env.items() if name != "image"}
        run["env"] = {**known, "images": _without_folders(env["images"])}
    sessions = manifest.get("sessions") or [{}]
    every = [flat({**run, **_of_session(session)}) for session in sessions]
    return [
        {
            name: Path(value).name if _accepted(name, _FILES) and value else value
            for name, value in facts.items()
            if not _accepted(name, _NOT_COMPARED)
        }
        for facts in every
    ]


def _of_session(session: Mapping[str, Any]) -> dict[str, Any]:
    facts = {name: session.get(name) or {} for name in SESSION}
    return {**facts, "tools": _without_folders(facts["tools"])}


def _without_folders(images: Mapping[str, Any]) -> dict[str, Any]:
    """Strip the folders of this machine from the images' names."""
    names = {name: _FOLDERS.sub("", _canonical(name)) for name in images}
    if len(set(names.values())) < len(names):
        return dict(images)
    return {names[name]: value for name, value in images.items()}


def _canonical(image: str) -> str:
    """Return one of several ways to write an image's name."""
    try:
        return str(parse(image))
    except ImageError:  # a name of another provider's
        return image


def _accepted(what: str, names: Collection[str]) -> bool:
    return any(what == name or what.startswith(f"{name}.") for name in names)


def _advice(what: str, before: object, recorded: Mapping[str, Any]) -> str:
    if before is None and not _accepted(what, (*VERSIONS, _OPTIONS)):
        return "none: the recorded run has nothing of the kind"
    dataset = recorded.get("dataset", {})
    sessions = recorded.get("sessions") or [{}]
    options = sessions[-1].get("options", {})
    commit = sessions[-1].get("versions", {}).get("commit", "the commit that it was made with")
    if what.startswith(_IMAGES) and "engine" in recorded.get("env", {}):
        return "take the database's file as it was, or name that one with --databases"
    advice = next(text for name, text in _ADVICE if _accepted(what, [name]))
    return advice.format(
        name=what.rpartition(".")[2],
        recorded=before,
        commit=str(commit).removesuffix("+"),
        source=options.get("data") or dataset.get("source") or dataset.get("name"),
    )


def _said(value: object) -> str:
    return "nothing" if value is None else str(value)
