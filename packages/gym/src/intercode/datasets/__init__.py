"""Loading of datasets by registered name, file, address or a user's loader.

A loader is a function that returns a `Dataset`. Each benchmark has a module with a loader ``load``,
and an entry in `intercode.registry.DATASETS`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, cast

from intercode.datasets.catalog import VERSIONS
from intercode.errors import InterCodeError, TaskError, UsageError
from intercode.registry import DATASETS, SOURCES, parse_scheme
from intercode.task import Dataset
from intercode_sandbox.spelling_suggestions import hint_text
from intercode_sandbox.user_code import error_location, is_reference, split

__all__ = ["load", "load_seeded", "loader_name", "splits", "accepts_option"]


def load(data: str | Path | Dataset, split: str | None = None, **options: Any) -> Dataset:
    """Load a dataset by name, file, address or a user's loader.

    A file or a benchmark is read again only if a file has changed. Your own loader is called each
    time. Tasks are immutable, so all environments share them.

    Args:
        data: The dataset, in one of five forms. A registered name (``"bash"``) may be followed by
            options of the loader (``"generated-bash:seed=1,difficulty=2"``). Your own loader has
            the same form (``"qa.py:load"``, ``"qa.py:load:seed=1"``). The path of a file is read
            by `intercode.datasets.files`. An address (``"harbor:FOLDER"``) is resolved by
            `intercode.registry.SOURCES`. A `Dataset` is returned unchanged. A registered name has
            precedence over a file of the same name: write ``./bash`` for the file.
        split: One of `splits`; None: the dataset's default split, or all tasks.
        options: Arguments of the loader.

    Returns:
        The dataset.

    Raises:
        TaskError: The dataset, file or split does not exist or is malformed, or your loader fails.
        UsageError: The loader needs other options, an option is given twice, or `data` is of
            another type.
    """
    if split is not None:
        if not accepts_option(data, "split"):
            return load(data, **options).split(split)
        options["split"] = split
    if isinstance(data, Dataset):
        return data
    if not isinstance(data, (str, Path)):
        raise UsageError(
            "data must be a Dataset, a file or a name, not "
            f"{type(data).__name__}: Dataset([Task(…), …]) holds tasks of your own"
        )
    if (name := loader_name(data)) is not None:
        loader, inline_options = DATASETS.resolve(name), _inline_options(data)
        if duplicates := sorted(inline_options.keys() & options.keys()):
            raise UsageError(
                f"dataset {data!r}: {duplicates[0]!r} is given twice: as an argument and within "
                "data"
            )
        try:
            inspect.signature(loader).bind(**inline_options, **options)
        except TypeError as error:
            raise UsageError(
                f"dataset {data!r}: {_refusal(loader, inline_options, error)}"
            ) from None
        dataset = _call_loader(data, loader, {**inline_options, **options})
        is_reviewed = inline_options.get("reviewed", options.get("reviewed"))
        dataset.version = VERSIONS.get(f"{name} (reviewed)" if is_reviewed else name)
        return dataset
    if (scheme := parse_scheme(data)) is not None:
        return cast(Dataset, SOURCES.get(scheme).tasks(str(data).partition(":")[2], **options))
    from intercode.datasets.files import load_cached_file

    if isinstance(data, str) and not Path(data).suffix and not Path(data).exists():
        raise TaskError(
            f"{data!r} is neither a file nor a dataset's name{hint_text(data, DATASETS.names())} "
            "(or your own loader, as path/to/file.py:name)"
        )
    return load_cached_file(data)


def splits(data: str | Path | Dataset) -> list[str]:
    """Return the names of a dataset's splits.

    If the loader has an option ``split``, as those of most benchmarks, the names are `SPLITS` of
    the loader's module, and no tasks are loaded. For other data, the names are the values of
    ``split`` in the tasks' metadata.

    Args:
        data: As in `load`.

    Raises:
        TaskError: See `load`.
    """
    if accepts_option(data, "split"):
        loader = DATASETS.resolve(str(loader_name(data)))
        return list(getattr(sys.modules[loader.__module__], "SPLITS", ()))
    return load(data).splits()


def load_seeded(
    data: str | Path | Dataset, seed: int, secret: str | None = None, split: str | None = None
) -> Dataset:
    """Load a dataset with `load`. A seed and a secret are passed to the loader if it accepts them.

    Args:
        data: As in `load`. A seed or a secret among the options in `data` overrides the argument.
        seed: The seed of generated tasks. Without effect if the tasks do not depend on a seed.
        secret: The secret from which flags are derived: see `intercode.datasets.puzzles.load`.
        split: As in `load`.

    Returns:
        The dataset.

    Raises:
        TaskError, UsageError: See `load`.
    """
    defaults = {"seed": seed, "secret": secret}
    inline_options = _inline_options(data)
    options = {
        k: value
        for k, value in defaults.items()
        if accepts_option(data, k) and k not in inline_options
    }
    return load(data, split, **options)


def accepts_option(data: str | Path | Dataset, option: str) -> bool:
    """Return whether a dataset's loader accepts an option, such as ``secret`` or ``reviewed``."""
    return option in _parameters(data)


def _parameters(data: str | Path | Dataset) -> Collection[str]:
    """Return the names of the parameters of a dataset's loader; empty for a file or `Dataset`."""
    name = loader_name(data)
    return () if name is None else inspect.signature(DATASETS.resolve(name)).parameters.keys()


def loader_name(data: object) -> str | None:
    """Return the name of a loader from ``NAME`` or ``NAME:OPTION=VALUE,…``.

    The name is registered, or a reference to a user's code. The result is None if `data` names no
    loader, for instance if it is a file or a dataset.
    """
    if not isinstance(data, str):
        return None
    name, colon, options_text = data.partition(":")
    if name and (not colon or "=" in options_text) and name in DATASETS:
        return name
    return split(data, ":")[0] if is_reference(data) and parse_scheme(data) is None else None


def _refusal(loader: Callable[..., object], options: Mapping[str, Any], error: TypeError) -> str:
    """Return the reason why a loader refuses its options, for a message.

    If one of `options` is unknown, the reason names that option and the valid options. Otherwise
    the reason is the text of `error`, which Python raised for the call.
    """
    names = [
        name
        for name, parameter in inspect.signature(loader).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    unknown = next((option for option in options if option not in names), None)
    if unknown is None:
        return str(error)
    advice = f"its options are {', '.join(names)}" if names else "it takes none"
    return (
        f"its loader has no option {unknown!r}{hint_text(unknown, names, listed=False)}: {advice}"
    )


def _call_loader(
    data: object, loader: Callable[..., object], options: Mapping[str, Any]
) -> Dataset:
    """Call a loader, and return its dataset.

    Raises:
        TaskError: A loader of the user raises an exception or exits. Or a loader returns an object
            that is not a dataset.
    """
    try:
        dataset = loader(**options)
    except InterCodeError:
        raise
    except (Exception, SystemExit) as error:
        file = getattr(getattr(inspect.unwrap(loader), "__code__", None), "co_filename", "")
        if loader.__module__.startswith("intercode.") or not file:
            raise
        location = error_location(error, file) or file
        raise TaskError(f"dataset {data!r}: {location}: {type(error).__name__}: {error}") from error
    if not isinstance(dataset, Dataset):
        raise TaskError(f"dataset {data!r}: its loader must return a Dataset, not {dataset!r:.80}")
    return dataset


def _inline_options(data: object) -> dict[str, Any]:
    """Parse the options in ``NAME:OPTION=VALUE,…``. A value of digits becomes an integer.

    Raises:
        UsageError: An option is malformed or repeated.
    """
    name = loader_name(data)
    if name is None or not (options_text := str(data)[len(name) + 1 :]):
        return {}
    options: dict[str, Any] = {}
    for assignment in options_text.split(","):
        option, equals, value = assignment.partition("=")
        if not option or not equals or not value or option in options:
            raise UsageError(
                f"dataset {data!r}: expected OPTION=VALUE, each once, not {assignment!r}"
            )
        options[option] = int(value) if value.isascii() and value.isdigit() else value
    return options
