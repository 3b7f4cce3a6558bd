"""Probes of run folders that are somebody else's: what of a record acts, and where links lead."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from intercode.envs.traits import check_imported
from intercode.errors import ImageError, RecordError, TrustError, UsageError
from intercode.project import find_benchmark, read as read_project
from intercode.records import EPISODES, MANIFEST, RunRecordWriter, read_manifest
from intercode.registry import ENVS
from intercode.report.live_runs import ViewerRuns
from intercode.spec import RunSpec, recorded_options
from intercode_sandbox.host_files import write_atomically
from intercode_sandbox.images.cache import RECORD, ImageCache
from intercode_sandbox.images.resolve import SCHEMES, check
from intercode_sandbox.lazy_imports import LazyRegistry

from .tools import ProbeError, one_of

KEY = "OPENAI_COMPATIBLE_API_KEY"


def _manifest(**options: Any) -> dict[str, Any]:
    return {"env": {"env": "bash"}, "sessions": [{"options": {"env": "bash", **options}}]}


def _refused(make: Callable[[], object]) -> bool:
    try:
        make()
    except (TrustError, RecordError):
        return one_of("refused", holds="refused", gone="taken")
    return one_of("taken", holds="refused", gone="taken")


def record_of_code() -> bool:
    return _refused(lambda: RunSpec.from_record(_manifest(agent="/tmp/x.py:make")))


def record_of_unknown_options() -> bool:
    return _refused(lambda: RunSpec.from_record(_manifest(of_tomorrow="x")))


def record_with_an_address_and_a_key() -> bool:
    os.environ[KEY] = "sk-very-secret-0123456789"
    there = {"agent": "try-again", "model": "vllm/m", "base_url": "http://example.org/v1"}
    return _refused(lambda: RunSpec.from_record(_manifest(**there), trust=True))


def record_of_another_value() -> bool:
    again = {"prompt": "/tmp/mine"}
    manifest = _manifest(agent="try-again", model="vllm/m", prompt="/tmp/x", skill=["/etc"])
    return _refused(lambda: RunSpec.from_record(manifest, again))


def record_of_a_datasets_path() -> bool:
    return _refused(lambda: RunSpec.from_record(_manifest(data="bird:root=/tmp")))


def record_of_a_folder_to_write() -> bool:
    found = recorded_options(_manifest(out="/tmp/there"))
    return one_of(str(found.get("out")), holds="None", gone="/tmp/there")


def record_of_a_sandbox_of_code() -> bool:
    return _refused(lambda: RunSpec.from_record(_manifest(sandbox="/tmp/x.py:make")))


def record_of_an_engine_of_code() -> bool:
    return _refused(lambda: RunSpec.from_record(_manifest(env="sql", engine="/tmp/x.py:make")))


def benchmark_of_code_for_tasks() -> bool:
    return _names_code('tasks = "x.py:load"')


def benchmark_of_code_for_a_sandbox() -> bool:
    return _names_code('sandbox = "x.py:make"')


def benchmark_of_a_stranger() -> bool:
    with tempfile.TemporaryDirectory() as name:
        os.mkdir(f"{name}/below")
        Path(name, "below", "t.jsonl").write_text("{}")
        Path(name, "intercode.toml").write_text('env = "bash"\ntasks = "below/t.jsonl"\n')
        os.chown(f"{name}/intercode.toml", 12345, 12345)
        found = find_benchmark(f"{name}/below/t.jsonl")
        return one_of("none" if found is None else "taken", holds="none", gone="taken")


def benchmark_of_any_size() -> bool:
    with tempfile.TemporaryDirectory() as name:
        Path(name, "intercode.toml").write_text('env = "bash"\n' + "#" * (2 << 20))
        try:
            read_project(name)
        except UsageError:
            return one_of("refused", holds="refused", gone="taken")
        return one_of("taken", holds="refused", gone="taken")


def _names_code(line: str) -> bool:
    with tempfile.TemporaryDirectory() as name:
        Path(name, "intercode.toml").write_text(f'env = "bash"\n{line}\n')
        try:
            read_project(name)
        except UsageError:
            return one_of("refused", holds="refused", gone="taken")
    return one_of("taken", holds="refused", gone="taken")


def task_with_an_image_of_code() -> bool:
    SCHEMES._entries["x"] = "no_such:x"
    SCHEMES._packages.add("x")
    try:
        check("x:argument")
    except ImageError:
        return one_of("refused", holds="refused", gone="taken")
    return one_of("taken", holds="refused", gone="taken")


def record_of_a_packages_name() -> bool:
    registry = LazyRegistry("thing", group="intercode.environments")
    registry._entries, registry._packages, registry._group = {"x": "no_such:x"}, {"x"}, None
    return one_of(str(registry.is_trusted("x")), holds="False", gone="True")


def record_of_a_packages_environment() -> bool:
    ENVS._entries["x"] = "no_such:x"
    ENVS._packages.add("x")
    return _refused(lambda: check_imported("x"))


def record_link() -> bool:
    with tempfile.TemporaryDirectory() as name:
        (folder := Path(name) / "run").mkdir()
        facts = {"name": "x", "digest": "d", "tasks": 1, "options": {}, "source": None}
        record = {"format": 1, "dataset": facts, "env": {"env": "bash"}, "agent": facts}
        record |= {"seed": 0, "excluded": {}, "sessions": []}
        (secret := Path(name) / "secret").write_text(json.dumps(record))
        (folder / MANIFEST).symlink_to(secret)
        return _refused(lambda: read_manifest(folder))


def record_fifo() -> bool:
    """A FIFO without a writer has no text, which is no JSON; with one it would never end."""
    with tempfile.TemporaryDirectory() as name:
        os.mkfifo(Path(name) / MANIFEST)
        try:
            read_manifest(Path(name))
        except RecordError as error:
            is_refused = "not a regular file" in str(error)
            return one_of("refused" if is_refused else "read", holds="refused", gone="read")
    raise ProbeError("a FIFO was taken for a record")


def record_link_to_write() -> bool:
    with tempfile.TemporaryDirectory() as name:
        (secret := Path(name) / "secret").write_text("mine")
        (Path(name) / f".{MANIFEST}.new").symlink_to(secret)
        write_atomically(Path(name) / MANIFEST, "theirs")
        return one_of(secret.read_text(), holds="mine", gone="theirs")


def record_link_of_the_writer() -> bool:
    with tempfile.TemporaryDirectory() as name:
        (folder := Path(name) / "run").mkdir()
        (secret := Path(name) / "secret").write_text("{torn")
        (folder / EPISODES).symlink_to(secret)
        try:
            RunRecordWriter(folder).close()
        except RecordError:
            return one_of(secret.read_text(), holds="{torn", gone="")
        return one_of(secret.read_text(), holds="{torn", gone="")


def record_link_in_a_folder_of_runs() -> bool:
    with tempfile.TemporaryDirectory() as name:
        (place := Path(name) / "runs").mkdir()
        (there := Path(name) / "there").mkdir()
        (there / MANIFEST).write_text("{}")
        (place / "link").symlink_to(there)
        told = ViewerRuns([place]).overview()[1]
    return one_of(str("run.json" in told), holds="False", gone="True")


def record_digest_is_no_path() -> bool:
    with tempfile.TemporaryDirectory() as name:
        (there := Path(name) / "there").mkdir()
        (there / RECORD).write_text('{"layers": []}')
        found = ImageCache(Path(name) / "cache").read(str(there))
    return one_of(str(found), holds="None", gone="{'layers': []}")
