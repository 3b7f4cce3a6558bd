"""The examples of clusters: KubeRay's manifest, and the commands in all of them."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from intercode.cli import main
from intercode.cli.commands import run
from intercode.errors import UsageError
from intercode.evaluate.executor import resolve_executor
from intercode.spec import RunSpec
from sources import ROOT

HERE = Path(__file__).parent
EXAMPLES = ROOT / "examples/ray"


def test_the_manifest_is_kuberays() -> None:
    manifest = yaml.safe_load((EXAMPLES / "rayjob.yaml").read_text())
    jsonschema.validate(manifest, json.loads((HERE / "kuberay.schema.json").read_text()))
    cluster = manifest["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    words = shlex.split(manifest["spec"]["entrypoint"])
    assert words[:2] == ["intercode", "run"]
    assert main._command_parser(run, "intercode run").parse_args(words[2:]).on == "ray"


def test_the_script_is_shells() -> None:
    subprocess.run(["bash", "-n", EXAMPLES / "slurm.sh"], check=True)
    assert yaml.safe_load((EXAMPLES / "cluster.yaml").read_text())["provider"]["type"] == "local"


def test_there_is_no_such_place() -> None:
    with pytest.raises(UsageError, match="no place to run on 'raj'"):
        resolve_executor(RunSpec.from_layers({"env": "bash", "on": "raj"}))
