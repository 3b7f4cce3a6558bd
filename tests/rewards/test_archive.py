"""Archives by what is in them: made in a sandbox, compared through the Bash reward."""

from __future__ import annotations

import pytest

import intercode
from intercode import Dataset, Task

FILES = {"f/a": "one\n", "f/b": "two\n"}
PACKED = "tar -czf x.tgz f"
SAME = [
    "tar -cf x.tgz f/b f/a", "tar -czf x.tgz f/a f/b f/a",
    "tar -C / -cf x.tgz root/f --transform s,root/,,",
    "touch -d 2001-01-01 f/a; gzip -1 -c <(tar -c f) >x.tgz",
]  # fmt: skip
OTHER = ["tar -cf x.tgz f/a", "cp -r f g; rm g/a; tar -cf x.tgz f g; rm -r g", "echo >x.tgz"]


@pytest.mark.parametrize(
    ("action", "value"), [*((a, 1.0) for a in SAME), *((a, 0.0) for a in OTHER)]
)
def test_a_tarball(action: str, value: float) -> None:
    answer = {"type": "state", "archives": {"/root/x.tgz": "tar"}}
    task = Task("t", "Pack f.", files=FILES, gold=(PACKED,), metadata={"answer": answer})
    env = intercode.make("bash", data=Dataset([task]))
    env.reset()
    env.step(action)
    reward = env.step("submit")[1]
    env.close()
    assert reward == value, env.episode.score.detail
