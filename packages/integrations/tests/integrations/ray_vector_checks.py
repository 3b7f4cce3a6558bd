"""Vectors on a Ray cluster: as in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray_cluster import Nodes

import intercode
from intercode.envs.vector import ThreadVectorEnv
from intercode.errors import ActionError, UsageError, VectorError
from waiting import eventually

pytest_plugins = ["ray_cluster"]
COUNT = 4


def is_dead(actor: Any) -> bool:
    """Whether a call to an actor fails, as it was killed."""
    try:
        ray.get(actor.__ray_ready__.remote())
    except ray.exceptions.RayActorError:
        return True
    return False


@pytest.fixture(scope="module")
def vector(cluster: Nodes) -> Iterator[ThreadVectorEnv]:
    ray.init(cluster.cluster.address, log_to_driver=False)
    made = intercode.make_vec("bash", COUNT, backend="ray")
    yield made
    made.close()
    ray.shutdown()


def pid(vector: ThreadVectorEnv) -> list[str]:
    """The process in which each environment is now."""
    return [str(env._current_slot()[0]) for env in vector.envs]


def played(vector: ThreadVectorEnv) -> list[Any]:
    found: list[Any] = [vector.reset(seed=3)[0]]
    for actions in (["echo $PWD > x; cat x"] * COUNT, ["cat x"] * COUNT, ["submit"] * COUNT):
        texts, rewards, ended, cut, _ = vector.step(actions)
        found += [texts, rewards.tolist(), ended.tolist(), cut.tolist()]
    found.append(vector.step(["cat x"] * COUNT)[0])  # which begins the next
    return found


def test_the_same_episodes(vector: ThreadVectorEnv) -> None:
    here = intercode.make_vec("bash", COUNT)
    try:
        assert played(vector) == played(here)
    finally:
        here.close()
    assert len(set(pid(vector))) == 3


def test_groups_and_forks(vector: ThreadVectorEnv) -> None:
    options = {"task_id": ["archive-01", None, "archive-01", None]}
    vector.reset(seed=1, options=options)
    assert [env.episode.task_id for env in vector.envs][::2] == ["archive-01"] * 2
    homes = pid(vector)
    vector.step(["x=7; echo file > made"] * COUNT)
    texts, _ = vector.fork(0, [1, 3])
    assert texts[1] == texts[0]
    assert pid(vector) == [homes[0], homes[0], homes[2], homes[0]]
    texts, *_ = vector.step(["echo $x; cat made; echo one >> made; wc -l < made"] * COUNT)
    assert [text.split()[:2] for text in texts] == [["7", "file"]] * COUNT
    assert [env.episode.id for env in vector.envs][1::2] == ["archive-01#0.0", "archive-01#0.1"]
    vector.reset()
    assert pid(vector) == homes


def test_some_of_them(vector: ThreadVectorEnv) -> None:
    vector.reset(seed=2)
    vector.send(["echo a", "echo b"], [0, 3])
    assert vector.recv(2)[4]["env_id"].tolist() == [0, 3]
    with pytest.raises(ActionError, match="one for each of"):
        vector.step("echo")
    with pytest.raises(UsageError, match="task"):
        vector.reset(options={"task": "unknown"})


def test_a_process_is_lost(vector: ThreadVectorEnv) -> None:
    vector.reset(seed=0)
    lost = vector.envs[0]._current_slot()[0]
    gone = [index for index, env in enumerate(vector.envs) if env._current_slot()[0] is lost]
    ray.kill(lost)  # allow kill: the next line waits for its end
    assert eventually(lambda: is_dead(lost))
    with pytest.raises(VectorError) as found:
        vector.step(["echo a"] * COUNT)
    assert sorted(found.value.errors) == gone
    texts, *_ = vector.step(["echo b"] * COUNT)  # those that were lost begin another episode
    assert [texts[n] for n in range(COUNT) if n not in gone] == ["b\n"] * (COUNT - len(gone))
    assert all(texts[n] != "b\n" for n in gone)
