"""The differences between two runs: tasks, environment, images, tools, code and machine.

`differences` compares two manifests fact by fact, and adds to each difference advice on how to
restore the recorded value. Callers refuse the differences with `DriftError` or `RecordError`, or
record accepted differences with the session.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from intercode.errors import ImageError, RecordError, UsageError
from intercode.evaluate.manifest import flatten
from intercode.records import diff
from intercode.redaction import SecretRedactor
from intercode.spec import add_identity
from intercode_sandbox.images.base import parse
from intercode_sandbox.images.cache import ImageCache
from intercode_sandbox.images.host import SPEC as HOST, changes
from intercode_sandbox.units import format_count, format_names

RUN = ("dataset", "env", "agent", "seed", "excluded")
"""The sections of ``run.json`` that are compared, and that hold for the run as a whole."""
SESSION = ("versions", "host", "sandbox", "tools")
"""The sections of a session's record that are compared."""
_IGNORED_FACTS = (
    *("dataset.name", "dataset.source", "dataset.tasks", "host.cpus"),
    "versions.commit",
)
"""The facts that are not compared, because they alone change no result. The content of datasets,
images and code is compared by digests."""
_BACKEND = "env.sandbox"
_OPTIONS = "env.options"
_ENV_CODE = "env.code.env"
_RESCORED = "rescored"
_IMAGES = "env.images."
_NAME_BY_DIGEST = {
    "agent.digest": "agent.name",
    "env.reward_digest": "env.reward",
    f"{_RESCORED}.digest": f"{_RESCORED}.reward",
}
"""Fact with the digest of a user's file → fact with the reference to an object in the file, such as
``reward.py:score``."""
_FILES = ("agent.name", "agent.options", "env.reward")
"""The facts that may be the path of a file. Of a path only the file's name is compared, because the
file's content is compared by a digest."""
_FOLDERS = re.compile(r"(?:^|(?<=\+)|(?<=[a-z]:))(?!//)(?:~|\.{1,2})?/(?:[^+/]+/)*")
_MACHINE = re.compile(r"(?:env\.images|tools)\.host(?:[+.].*)?|host\.release")
"""The names of facts that change if this machine, whose files are the image ``host``, is
updated."""
_MAX_ITEMS = 20

VERSIONS = ("env.rules", "dataset.version")
"""The facts that are versions of scoring rules and datasets. If a version differs, the scores of
two runs are not comparable."""

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
"""Prefix of a difference's name → the advice; the first matching prefix counts."""


@dataclass(frozen=True, slots=True)
class ManifestDifference:
    """A fact whose current value differs from the recorded value."""

    what: str
    """The name of the fact: the path of keys in the record, joined by dots."""
    recorded: Any
    """The recorded value; None: the record lacks the fact."""
    now: Any
    advice: str
    """The advice on how to restore the recorded value."""

    def __str__(self) -> str:
        return (
            f"{self.what}: recorded {_format_value(self.recorded)}, now {_format_value(self.now)}"
        )


class DriftError(UsageError):
    """The refusal to reproduce a recorded run, because facts have changed since the record.

    Attributes:
        differences: The changed facts.
    """

    def __init__(self, differences: Collection[ManifestDifference]) -> None:
        self.differences = list(differences)
        lines = [
            f"  {difference}\n    to fix it: {difference.advice}" for difference in self.differences
        ]
        if len(lines) > _MAX_ITEMS:
            lines[_MAX_ITEMS:] = [f"  … and {len(lines) - _MAX_ITEMS} more (--json has them all)"]
        count = format_count(len(self.differences), "thing")
        text = "\n".join(lines)
        super().__init__(
            f"{count} would not be as in the recorded run:\n{text}\n"
            "What makes no difference to you can be accepted by its name, or the beginning of it: "
            f"--accept {self.differences[0].what.partition('.')[0]}"
        )


def differences(
    recorded_manifest: Mapping[str, Any],
    current_manifest: Mapping[str, Any],
    accept: Collection[str] = (),
) -> list[ManifestDifference]:
    """Return the differences between two runs, from their ``run.json``.

    If a run has several sessions, the other run must match all of them. A run whose own sessions
    differ matches no other run.

    Args:
        recorded_manifest: The ``run.json`` of the first run.
        current_manifest: The ``run.json`` of the second run.
        accept: Names that may differ, or prefixes of names: ``host``, ``tools.host.git``.

    Returns:
        The differences, sorted by name; one for each name and recorded value.
    """
    differences_by_key: dict[tuple[str, str], ManifestDifference] = {}
    redact = (
        SecretRedactor().facts
    )  # secrets are redacted in records, so they are also redacted here
    for recorded_facts, current_facts in product(
        _facts(redact(recorded_manifest)), _facts(redact(current_manifest))
    ):
        # If the sandbox providers differ, all facts about the sandboxes differ, too. Only the
        # difference of the providers is reported.
        is_same_backend = recorded_facts.get(_BACKEND) == current_facts.get(_BACKEND)
        may_differ = accept if is_same_backend else (*accept, "sandbox")
        # If the rewards differ, the rules differ, too. Only the difference of the rewards is
        # reported.
        if recorded_facts.get("env.reward") != current_facts.get("env.reward"):
            may_differ = (*may_differ, "env.rules")
        digests, versions = (
            [facts.get(f"dataset.{name}") for facts in (recorded_facts, current_facts)]
            for name in ("digest", "version")
        )
        # A record may be older than the versions of datasets. Equal digests then prove equal tasks.
        if None in versions and digests[0] == digests[1]:
            may_differ = (*may_differ, "dataset.version")
        if None in (
            recorded_facts.get(_ENV_CODE),
            current_facts.get(_ENV_CODE),
        ):  # a record may be older than this digest, and then lacks the fact
            may_differ = (*may_differ, _ENV_CODE)
        for fact_name, recorded_value, current_value in diff(recorded_facts, current_facts):
            if not _matches_any(fact_name, may_differ):
                advice = _advice(fact_name, recorded_value, recorded_manifest)
                difference = ManifestDifference(fact_name, recorded_value, current_value, advice)
                differences_by_key.setdefault((fact_name, repr(recorded_value)), difference)
    return [difference for _, difference in sorted(differences_by_key.items())]


def find_machine_drift(
    all_differences: Collection[ManifestDifference], recorded_manifest: Mapping[str, Any]
) -> list[ManifestDifference]:
    """Return the differences that only reflect changes of this machine and its image ``host``.

    The list is empty if the recorded run did not use the image ``host``.
    """
    images = (recorded_manifest.get("env") or {}).get("images") or {}
    if not any(_canonical_name(name).partition("+")[0] == HOST for name in images):
        return []
    return [difference for difference in all_differences if _MACHINE.fullmatch(difference.what)]


def find_version_drift(all_differences: Collection[ManifestDifference]) -> list[ManifestDifference]:
    """Return the differences between versions of rules or of datasets."""
    return [difference for difference in all_differences if _matches_any(difference.what, VERSIONS)]


def describe_changes(machine_differences: Sequence[ManifestDifference]) -> list[str]:
    """Describe the changes of this machine, from the differences of `find_machine_drift`.

    The text names packages or programs if the image cache still has the machine's former image.
    """
    cache = ImageCache.default()
    images = [
        difference
        for difference in machine_differences
        if difference.what.startswith("env.images.")
    ]
    image_changes = (
        changes(difference.recorded, difference.now, cache)
        for difference in images
        if difference.recorded and difference.now
    )
    package_changes = next(filter(None, image_changes), [])
    remaining_differences = [
        difference
        for difference in machine_differences
        if not package_changes or difference.what.startswith("host.")
    ]
    return [*package_changes, *map(str, remaining_differences)]


def refuse_differences(
    recorded_manifest: Mapping[str, Any],
    current_manifest: Mapping[str, Any],
    accept: Collection[str] = (),
) -> None:
    """Refuse two runs that differ.

    Raises:
        DriftError: `differences` found differences.
    """
    if run_differences := differences(recorded_manifest, current_manifest, accept):
        raise DriftError(run_differences)


def refuse_other_run(
    recorded_manifest: Mapping[str, Any], current_manifest: Mapping[str, Any], folder: object
) -> None:
    """Refuse to mix two different runs in one folder.

    Raises:
        RecordError: The runs differ in the facts of the sections `RUN`, or in the reward of a
            rescored run. The message names each fact with both values, or the changed file.
    """
    run_differences = [
        entry
        for entry in differences(recorded_manifest, current_manifest)
        if entry.what.partition(".")[0] in RUN
    ]
    changed_facts = [
        (entry.what.removeprefix(f"{_OPTIONS}."), entry.recorded, entry.now)
        for entry in run_differences
    ]
    redact = SecretRedactor().facts
    rescored_facts = [
        flatten({_RESCORED: redact(entry).get(_RESCORED)})
        for entry in (recorded_manifest, current_manifest)
    ]
    if changed_facts := [*changed_facts, *diff(*rescored_facts)]:
        texts = [
            f"{fact_name} was {recorded_value!r} and is now {current_value!r}"
            for fact_name, recorded_value, current_value in changed_facts
            if _changed_file(fact_name, recorded_manifest, current_manifest) is None
        ]
        files = (
            _changed_file(fact_name, recorded_manifest, current_manifest)
            for fact_name, _, _ in changed_facts
        )
        texts += [f"{file} has changed since" for file in dict.fromkeys(filter(None, files))]
        has_other_rules = any(_matches_any(entry.what, ["env.rules"]) for entry in run_differences)
        rescore_advice = (
            "; a run of another version of a rule can be scored again by 'intercode rescore'"
        )
        raise RecordError(
            f"{folder} holds another run: {'; '.join(texts)}. Choose another folder (--out NEW), "
            f"or use the settings of that run{rescore_advice if has_other_rules else ''}"
        )


def _changed_file(
    fact_name: str, recorded_manifest: Mapping[str, Any], current_manifest: Mapping[str, Any]
) -> str | None:
    """Return the name of the file whose changed content explains a changed digest.

    Returns:
        The file or database in words. None: the fact is not a digest of a file, or the reference to
        the file also changed.
    """
    if fact_name.startswith(_IMAGES) and "engine" in recorded_manifest.get("env", {}):
        return f"database {fact_name.removeprefix(_IMAGES)!r} ({fact_name})"
    name = _NAME_BY_DIGEST.get(fact_name)
    if name is None:
        return None
    recorded_value, current_value = (
        flatten(run).get(name) for run in (recorded_manifest, current_manifest)
    )
    if not isinstance(recorded_value, str) or not isinstance(current_value, str):
        return None
    files = [
        Path(reference.rpartition(":")[0] or reference).name
        for reference in (recorded_value, current_value)
    ]
    return files[0] if files[0] == files[1] else None


def warning(drift_texts: Sequence[str]) -> str:
    """Return the warning that this machine, and the image ``host``, has changed."""
    return (
        f"warning: this machine has changed since the run began, and its image 'host' with it: "
        f"{format_names(drift_texts, _MAX_ITEMS)}. The record says so; --strict refuses it, and "
        "the image 'base' follows no machine"
    )


def session_differences(
    recorded_manifest: Mapping[str, Any],
    current_manifest: Mapping[str, Any],
    machine: Collection[str] = (),
) -> dict[str, Any]:
    """Return the facts of a session that differ from the run's facts, for the session's record.

    The facts of the run as a whole (`RUN`) appear only once in ``run.json``. A resumed session with
    accepted differences therefore records its own values.

    Args:
        recorded_manifest: The run's ``run.json``.
        current_manifest: The ``run.json`` that a new run would have.
        machine: The changes of this machine; see `describe_changes`.
    """
    current_values = {
        difference.what: difference.now
        for difference in differences(recorded_manifest, current_manifest)
        if difference.what.partition(".")[0] in RUN
    }
    current_values |= {"machine": list(machine)} if machine else {}
    return {"differs": current_values} if current_values else {}


def _facts(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the compared facts of each session, with dotted names."""
    run = {name: add_identity(manifest).get(name) for name in RUN}
    env = run["env"] or {}
    if "images" in env:  # the digests of the images make the requested image's name redundant
        env_facts = {name: fact for name, fact in env.items() if name != "image"}
        run["env"] = {**env_facts, "images": _without_folders(env["images"])}
    sessions = manifest.get("sessions") or [{}]
    session_facts = [flatten({**run, **_of_session(session)}) for session in sessions]
    return [
        {
            name: Path(value).name if _matches_any(name, _FILES) and value else value
            for name, value in facts.items()
            if not _matches_any(name, _IGNORED_FACTS)
        }
        for facts in session_facts
    ]


def _of_session(session: Mapping[str, Any]) -> dict[str, Any]:
    facts = {name: session.get(name) or {} for name in SESSION}
    return {**facts, "tools": _without_folders(facts["tools"])}


def _without_folders(images: Mapping[str, Any]) -> dict[str, Any]:
    """Remove this machine's folders from the images' names, unless two names become equal."""
    names = {name: _FOLDERS.sub("", _canonical_name(name)) for name in images}
    if len(set(names.values())) < len(names):
        return dict(images)
    return {names[name]: value for name, value in images.items()}


def _canonical_name(image: str) -> str:
    """Return the canonical form of an image's name."""
    try:
        return str(parse(image))
    except ImageError:  # the name is valid only for another sandbox provider
        return image


def _matches_any(fact_name: str, names: Collection[str]) -> bool:
    return any(fact_name == name or fact_name.startswith(f"{name}.") for name in names)


def _advice(fact_name: str, recorded_value: object, recorded_manifest: Mapping[str, Any]) -> str:
    if recorded_value is None and not _matches_any(fact_name, (*VERSIONS, _OPTIONS)):
        return "none: the recorded run has nothing of the kind"
    dataset = recorded_manifest.get("dataset", {})
    sessions = recorded_manifest.get("sessions") or [{}]
    options = sessions[-1].get("options", {})
    commit = sessions[-1].get("versions", {}).get("commit", "the commit that it was made with")
    if fact_name.startswith(_IMAGES) and "engine" in recorded_manifest.get("env", {}):
        return "take the database's file as it was, or name that one with --databases"
    advice = next(text for name, text in _ADVICE if _matches_any(fact_name, [name]))
    return advice.format(
        name=fact_name.rpartition(".")[2],
        recorded=recorded_value,
        commit=str(commit).removesuffix("+"),
        source=options.get("data") or dataset.get("source") or dataset.get("name"),
    )


def _format_value(value: object) -> str:
    return "nothing" if value is None else str(value)
