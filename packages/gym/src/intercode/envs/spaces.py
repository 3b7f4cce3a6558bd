"""The space of texts."""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import Any

import gymnasium
from gymnasium.error import CustomSpaceError
from gymnasium.vector.utils import create_shared_memory

_ALPHABET = string.ascii_lowercase + string.digits + " -_./"


class Unicode(gymnasium.Space[str]):
    """All texts, of any length and in any script, also those that hold undecodable bytes.

    Not a subclass of `gymnasium.spaces.Text`, whose default alphabet has no punctuation, and
    which under `AsyncVectorEnv`'s shared memory returns wrong texts without an error. Batches of
    it are tuples of texts.

    Samples are short and hold nothing that a shell would treat specially, so that a random
    agent does the same in every run.

    Args:
        seed: For `sample`.
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Texts have no flat form of fixed size."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """A random text of 1 to 24 characters.

        Args:
            mask: Must be None: there is nothing to mask.
            probability: Must be None, too.
        """
        if mask is not None or probability is not None:
            raise gymnasium.error.Error("a Unicode space takes no mask and no probability")
        length = int(self.np_random.integers(1, 25))
        letters = self.np_random.integers(len(_ALPHABET), size=length)
        return "".join(_ALPHABET[index] for index in letters)

    def contains(self, x: Any) -> bool:
        """Whether it is a text."""
        return isinstance(x, str)

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """A batch as JSON types: the texts themselves."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """The inverse of `to_jsonable`."""
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
