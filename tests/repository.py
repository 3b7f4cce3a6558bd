"""Checks of the files that GitHub and contributors read: ``python tests/repository.py [ROOT]``.

Four programs check their form: actionlint and zizmor the workflows, check-jsonschema all files with
a published schema, pre-commit its own. The rules here check their content. A job calls a target of
the Makefile and nothing else. A job has no more permissions than it needs, and names each action by
its commit. No program asks a network.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = ".github/workflows"
SCHEMAS = {
    "vendor.github-workflows": f"{WORKFLOWS}/*.yml",
    "custom.github-workflows-require-timeout": f"{WORKFLOWS}/*.yml",
    "vendor.github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "vendor.dependabot": ".github/dependabot.yml",
    "vendor.citation-file-format": "CITATION.cff",
}
"""Schema of check-jsonschema → glob of its files."""
RUN = re.compile(
    r"""(?:sudo env "PATH=\$PATH" (?:CI=1 )?)?make ([a-z][\w-]*)(?: \w+="?[\w. -]*"?)*"""
)
"""The one form of a job's command: a target of the Makefile, as this user or as root."""
ACTION = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}")
PINNED = re.compile(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$")
PERMISSIONS = {"contents": "read"}
"""The most that a job has, except one that publishes."""
PUBLISHER = "pypa/gh-action-pypi-publish"


def commands(root: Path) -> Iterator[list[str]]:
    """Yield the command of each program, with the files that it checks."""
    workflows = sorted(str(path.relative_to(root)) for path in root.glob(f"{WORKFLOWS}/*"))
    yield ["actionlint", *workflows]
    yield ["zizmor", "--offline", "--quiet", "--no-progress", *workflows, ".github/dependabot.yml"]
    yield ["pre-commit", "validate-config", ".pre-commit-config.yaml"]
    for schema, glob in SCHEMAS.items():
        files = sorted(str(path.relative_to(root)) for path in root.glob(glob))
        yield ["check-jsonschema", "--builtin-schema", schema, *files]


def program_findings(root: Path, file: str = "") -> Iterator[str]:
    """Yield the output of each program that refuses a file.

    Args:
        root: The checkout.
        file: Leave out the programs that do not check this file.
    """
    for program, *arguments in commands(root):
        if file and file not in arguments:
            continue
        result = subprocess.run(
            [Path(sys.executable).with_name(program), *arguments],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if result.returncode:
            yield f"{program} {' '.join(arguments)}:\n{result.stdout}"


def load(path: Path) -> Any:
    """Read a YAML file as texts alone: as YAML 1.1 reads it, the key `on` would be true."""
    return yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)


def workflow_findings(root: Path) -> Iterator[str]:
    """Yield each place where a workflow does not follow the rules."""
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))
    for path in sorted((root / WORKFLOWS).glob("*")):
        name, workflow = path.name, load(path)
        if workflow.get("permissions") != {}:
            yield f"{name}: `permissions: {{}}` at the top; each job states its own"
        if "group" not in workflow.get("concurrency", {}):
            yield f"{name}: it needs a concurrency group"
        for line in path.read_text(encoding="utf-8").splitlines():
            if "uses: " in line and "uses: ./" not in line and not PINNED.search(line):
                yield f"{name}: an action is named by its commit, with `  # vX.Y.Z`: {line.strip()}"
        for key, job in workflow["jobs"].items():
            yield from (f"{name}: {key}: {text}" for text in job_findings(job, targets))


def job_findings(job: Mapping[str, Any], targets: set[str]) -> Iterator[str]:
    """Yield what is wrong with one job.

    Args:
        job: The job, as its workflow states it.
        targets: Names of the Makefile's targets.
    """
    if "uses" not in job and "timeout-minutes" not in job:
        yield "it needs `timeout-minutes`"
    steps = job.get("steps", [])
    is_publisher = any(step.get("uses", "").startswith(f"{PUBLISHER}@") for step in steps)
    if is_publisher and any("run" in step for step in steps):
        yield "a job that publishes runs no command"
    if is_publisher and not job.get("environment"):
        yield "a job that publishes needs an environment"
    allowed = {"id-token": "write"} if is_publisher else PERMISSIONS
    if job.get("permissions") != allowed:
        yield f"its permissions must be {allowed}"
    for step in steps:
        if "run" in step:
            match = RUN.fullmatch(step["run"])
            if not match or match[1] not in targets:
                yield f"no target of the Makefile alone: {step['run']!r}"
        elif not ACTION.fullmatch(step.get("uses", "")):
            yield f"no action by its commit: {step.get('uses')!r}"
        is_checkout = step.get("uses", "").startswith("actions/checkout@")
        if is_checkout and step.get("with", {}).get("persist-credentials") != "false":
            yield "a checkout keeps no credentials: `persist-credentials: false`"


def contributor_findings(root: Path) -> Iterator[str]:
    """Yield what is wrong with the issue forms, the hooks and the development container."""
    forms = root / ".github/ISSUE_TEMPLATE"
    required = [
        field["attributes"]["label"]
        for field in load(forms / "bug.yml")["body"]
        if field.get("validations", {}).get("required") == "true"
    ]
    if not any("intercode doctor --json" in label for label in required):
        yield "bug.yml: it must ask for `intercode doctor --json`"
    security = (root / "SECURITY.md").read_text(encoding="utf-8")
    links = [link["url"] for link in load(forms / "config.yml")["contact_links"]]
    if not any(link in security for link in links):
        yield "config.yml: no link is that of SECURITY.md's private reports"
    (repository,) = load(root / ".pre-commit-config.yaml")["repos"]
    if [hook["entry"] for hook in repository["hooks"]] != ["make lint"]:
        yield ".pre-commit-config.yaml: its hook is `make lint`, and there is no other"
    container = json.loads((root / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    page = (root / "docs/sandbox/containers.md").read_text(encoding="utf-8")
    arguments = " ".join(container["runArgs"])
    for option in re.findall(r"(--(?:security-opt|cap-add) [\w=]+)", page):
        if option not in arguments and option != "--cap-add SETFCAP":  # for a nested engine
            yield f"devcontainer.json: sandboxes need {option}"
    if container["postCreateCommand"] != "make set-up":
        yield "devcontainer.json: after its creation, `make set-up` installs all else"


def main(arguments: list[str]) -> int:
    """Print all findings in a checkout; return the exit code."""
    root = Path(arguments[0]) if arguments else ROOT
    rules = (workflow_findings, contributor_findings, program_findings)
    findings = [text for rule in rules for text in rule(root)]
    for text in findings:
        print(text)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
