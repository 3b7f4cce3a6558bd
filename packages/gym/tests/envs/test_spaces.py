from __future__ import annotations

import copy
import json
import pickle

import gymnasium
import pytest
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from intercode.envs.spaces import Unicode


def test_it_contains_texts_and_nothing_else() -> None:
    space = Unicode()
    for text in ("", "ls -la | sort > 'x'", "日本語\n", "\udc80", "a" * 1_000_000):
        assert text in space
    for other in (None, 3, b"x", ["x"]):
        assert other not in space


def test_samples_are_seeded() -> None:
    one, other = Unicode(seed=3), Unicode()
    other.seed(3)
    samples = [one.sample() for _ in range(50)]
    assert samples == [other.sample() for _ in range(50)]
    assert len(set(samples)) > 40
    assert all(sample in one for sample in samples)
    assert samples != [Unicode(seed=4).sample() for _ in range(50)]
    with pytest.raises(gymnasium.error.Error):
        one.sample(mask=[1])


def test_equal_and_copied() -> None:
    assert Unicode() == Unicode(seed=3)
    assert Unicode() != gymnasium.spaces.Text(5)
    assert hash(Unicode()) == hash(Unicode(1))
    assert copy.deepcopy(Unicode()) == pickle.loads(pickle.dumps(Unicode())) == Unicode()
    assert repr(Unicode()) == "Unicode()"
    assert not isinstance(Unicode(), gymnasium.spaces.Text)


def test_json_keeps_every_byte() -> None:
    space = Unicode()
    batch = ["a", "\udc80\udcff", "日本"]
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(batch)))) == batch


def test_batches_are_tuples() -> None:
    space = Unicode(seed=1)
    batched = batch_space(space, 3)
    assert isinstance(batched, gymnasium.spaces.Tuple)
    assert ("a", "b", "c") in batched
    assert batched.sample() in batched
    empty = create_empty_array(space, 2)
    assert concatenate(space, ["a", "b"], empty) == ("a", "b")
    assert list(iterate(batched, ("a", "b", "c"))) == ["a", "b", "c"]
