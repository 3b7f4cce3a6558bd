"""Catalogue of datasets: titles, licences, versions, and the authors' archives.

The authors of the datasets publish no checksums. The checksums in this catalogue were computed from
the archives at their addresses when the entries were written. If the authors replace an archive,
its checksum does not match, and the download fails. The user then inspects the new archive, and
passes its checksum with ``--checksum``.
"""

from __future__ import annotations

from dataclasses import dataclass

from intercode.errors import UsageError
from intercode.registry import DATASETS
from intercode_sandbox.spelling_suggestions import hint_text


@dataclass(frozen=True, slots=True)
class DatasetCatalogEntry:
    """An entry of the catalogue: the title, the licence and the origin of a dataset."""

    name: str
    title: str
    licence: str
    home: str
    """The address of the dataset's page; empty if the dataset needs no download."""
    url: str = ""
    """The address of the archive; empty if the archive has no stable address."""
    sha256: str = ""
    """The SHA-256 of the archive in hexadecimal."""
    size: int = 0
    """The approximate size of the archive in bytes."""
    advice: str = ""
    """Instructions for users to obtain a dataset that cannot be fetched."""
    package: str = ""
    """The Python package that contains the dataset; empty if no package contains it."""
    version: int = 1
    """The version of a bundled dataset's tasks; without a meaning for other datasets."""

    @property
    def bundled(self) -> bool:
        """Whether the dataset needs no download: it is bundled, or registered by the user."""
        return not self.home


def _swe_bench(name: str, title: str, repository: str) -> DatasetCatalogEntry:
    return DatasetCatalogEntry(
        name,
        title,
        "MIT",
        f"https://huggingface.co/datasets/princeton-nlp/{repository}",
        advice="save its rows as JSON or JSONL, and in Python: "
        f"intercode.load_dataset({name!r}, root=FILE); the repositories are cloned by you "
        "(--repositories)",
    )


_ENTRIES = (
    DatasetCatalogEntry("bash", "our own Bash tasks", "MIT", ""),
    DatasetCatalogEntry(
        "bash-hard", "hard tasks for Bash: exploration, misleading data, repairs", "MIT", ""
    ),
    DatasetCatalogEntry(
        "bash-starter", "easy tasks for Bash, for small models to begin with", "MIT", ""
    ),
    DatasetCatalogEntry(
        "python", "our own Python tasks: functions, classes, repairs, data", "MIT", ""
    ),
    DatasetCatalogEntry(
        "python-hard", "hard tasks for Python: exploration, misleading data, repairs", "MIT", ""
    ),
    DatasetCatalogEntry(
        "python-starter", "easy tasks for Python, for small models to begin with", "MIT", ""
    ),
    DatasetCatalogEntry("ctf", "our own CTF puzzles, generated from each seed", "MIT", ""),
    DatasetCatalogEntry("generated-bash", "tasks for Bash, generated from each seed", "MIT", ""),
    DatasetCatalogEntry(
        "generated-python", "tasks for Python, generated from each seed", "MIT", ""
    ),
    DatasetCatalogEntry("generated-sql", "tasks for SQL, generated from each seed", "MIT", ""),
    DatasetCatalogEntry("sql", "our own SQL tasks, over four databases", "MIT", ""),
    DatasetCatalogEntry(
        "sql-hard", "hard tasks for SQL: exploration, misleading data, repairs", "MIT", ""
    ),
    DatasetCatalogEntry(
        "sql-starter", "easy tasks for SQL, for small models to begin with", "MIT", ""
    ),
    DatasetCatalogEntry("swe", "our own SWE tasks: small repositories with a bug each", "MIT", ""),
    DatasetCatalogEntry("swe-hard", "hard SWE tasks: causes away from what is reported", "MIT", ""),
    DatasetCatalogEntry(
        "spider",
        "Spider 1.0: questions over many databases (Yu et al. 2018); dev: 1,034 tasks",
        "CC BY-SA 4.0",
        "https://yale-lily.github.io/spider",
        "https://drive.usercontent.google.com/download"
        "?id=1403EGqzIDoHMdQF4c9Bkyl7dZLZ5Wt6J&export=download&confirm=t",
        "00636695dabed6b5f4b8328a16b13e069a2f16591d5efcce57660669c85b121b",
        205_800_266,
    ),
    DatasetCatalogEntry(
        "bird",
        "BIRD: questions over large databases (Li et al. 2023); dev: 1,534 tasks",
        "CC BY-SA 4.0",
        "https://bird-bench.github.io",
        "https://bird-bench.oss-cn-beijing.aliyuncs.com/dev.zip",
        "cdd6d19faeb45a23970b98d3ef6c40a87987c95459c2cf12076897a60cf5a630",
        346_207_293,
    ),
    DatasetCatalogEntry(
        "bird-mini-dev",
        "BIRD's mini-dev: 500 of its tasks",
        "CC BY-SA 4.0",
        "https://github.com/bird-bench/mini_dev",
        "https://bird-bench.oss-cn-beijing.aliyuncs.com/minidev.zip",
        "cc48ba16838204e4e214512030cb572eeb5f7bcdd999bae4b9b6ff12ec13b92f",
        800_943_648,
    ),
    DatasetCatalogEntry(
        "wikisql",
        "WikiSQL: questions over one table each (Zhong et al. 2017); dev: 8,421 tasks",
        "BSD-3-Clause",
        "https://github.com/salesforce/WikiSQL",
        "https://github.com/salesforce/WikiSQL/raw/master/data.tar.bz2",
        "755c728ab188e364575705c8641f3fafd86fb089cb8b08e8c03f01832aae0881",
        26_164_664,
    ),
    DatasetCatalogEntry(
        "mbpp",
        "MBPP: small Python functions (Austin et al. 2021); 974 tasks",
        "CC BY 4.0",
        "https://github.com/google-research/google-research/tree/master/mbpp",
        advice="save its file mbpp.jsonl in a folder, and in Python: "
        "intercode.load_dataset('mbpp', root=FOLDER)",
    ),
    DatasetCatalogEntry(
        "apps",
        "APPS: programming problems (Hendrycks et al. 2021); test: 5,000 problems",
        "MIT",
        "https://github.com/hendrycks/apps",
        advice="unpack the authors' APPS.tar.gz (or save their test.jsonl in a folder), and: "
        "intercode datasets fetch apps --from FOLDER",
    ),
    _swe_bench(
        "swe-bench",
        "SWE-bench: issues of 12 Python projects (Jimenez et al. 2024); test: 2,294 tasks",
        "SWE-bench",
    ),
    _swe_bench("swe-bench-lite", "SWE-bench Lite: 300 of its tasks", "SWE-bench_Lite"),
    _swe_bench(
        "swe-bench-verified",
        "SWE-bench Verified: 500 of its tasks, looked through by people",
        "SWE-bench_Verified",
    ),
    DatasetCatalogEntry(
        "ic-ctf",
        "the CTF tasks of the 2023 paper: 100 puzzles from picoCTF",
        "MIT",
        "https://github.com/princeton-nlp/intercode",
        advice="clone the 2023 release, and in Python: "
        "intercode.load_dataset('ic-ctf', root=FOLDER)",
    ),
    DatasetCatalogEntry(
        "nl2bash",
        "the Bash tasks of the 2023 paper: 200 in four file systems",
        "MIT",
        "https://github.com/princeton-nlp/intercode",
        advice="clone the 2023 release, and: intercode datasets fetch nl2bash --from FOLDER",
    ),
    DatasetCatalogEntry(
        "nl2sh-alfa",
        "NL2SH-ALFA: NL2Bash corrected (Westenfelder et al. 2025); 300 tasks with two golds each",
        "MIT",
        "https://github.com/westenfelder/InterCode-ALFA",
        advice="pip install --no-deps icalfa; or clone it, and: "
        "intercode datasets fetch nl2sh-alfa --from FOLDER",
        package="icalfa",
    ),
)


VERSIONS = {entry.name: entry.version for entry in _ENTRIES if entry.bundled} | {
    "mbpp (reviewed)": 1,
    "nl2bash (reviewed)": 1,
    "nl2sh-alfa": 1,
    "spider (reviewed)": 1,
}
"""Name of a bundled dataset, or of a dataset with reviewed golds → its version.

Increase the version when a task, its files, its gold or its review change.
"""


def entries() -> list[DatasetCatalogEntry]:
    """Return an entry for every dataset with a name.

    The entries of the catalogue come first, then those of other registered datasets.
    """
    names = {entry.name for entry in _ENTRIES}
    other_names = [name for name in DATASETS.names() if name not in names]
    return [
        *_ENTRIES,
        *(DatasetCatalogEntry(name, "registered here", "unknown", "") for name in other_names),
    ]


def find(name: str) -> DatasetCatalogEntry:
    """Return the entry of a dataset.

    Raises:
        UsageError: No dataset has this name. The message suggests a similar name.
    """
    for entry in entries():
        if entry.name == name:
            return entry
    names = [entry.name for entry in entries()]
    raise UsageError(f"there is no dataset {name!r}{hint_text(name, names)}")
