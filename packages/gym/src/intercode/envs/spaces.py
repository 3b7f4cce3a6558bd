"""The Gymnasium space of texts, for observations and actions."""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import Any

import gymnasium
from gymnasium.error import CustomSpaceError
from gymnasium.vector.utils import create_shared_memory

_ALPHABET = string.ascii_lowercase + string.digits + " -_./"


class Unicode(gymnasium.Space[str]):
    """The space of all texts, of any length and script, including undecodable bytes.

    `gymnasium.spaces.Text` is unsuitable as a base class. Its default alphabet has no punctuation,
    and under ``AsyncVectorEnv``'s shared memory that space returns wrong texts without an error.
    Batches of this space are tuples of texts.

    Samples are short and contain no special characters of a shell. A random agent that sends
    samples as commands therefore redirects no output and starts no background job.

    Args:
        seed: The seed of `sample`.
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: texts have no flat form of fixed size."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Return a random text of 1 to 24 characters: lower-case letters, digits and `` -_./``.

        Args:
            mask: Must be None; the space supports no mask.
            probability: Must be None; the space supports no probabilities.

        Raises:
            gymnasium.error.Error: A mask or a probability is given.
        """
        if mask is not None or probability is not None:
            raise gymnasium.error.Error("a Unicode space takes no mask and no probability")
        length = int(self.np_random.integers(1, 25))
        letters = self.np_random.integers(len(_ALPHABET), size=length)
        return "".join(_ALPHABET[index] for index in letters)

    def contains(self, value: Any) -> bool:
        """Return whether a value is a text."""
        return isinstance(value, str)

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Return a batch as JSON types: a list of the texts."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """Return a batch from its JSON types: the inverse of `to_jsonable`."""
        return list(sample_n)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode)

    def __hash__(self) -> int:
        return hash(Unicode)

    def __repr__(self) -> str:
        return "Unicode()"


@create_shared_memory.register(Unicode)
def _no_shared_memory(space: Unicode, n: int = 1, ctx: Any = None) -> Any:
    raise CustomSpaceError(
        "a text of unlimited length needs a vector without shared memory: gymnasium.make_vec(…, "
        "vectorization_mode='async', vector_kwargs={'shared_memory': False})"
    )
