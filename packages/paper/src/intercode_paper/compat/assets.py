"""The module ``intercode.assets`` of the 2023 release: images, and small files of example tasks."""

from __future__ import annotations

from intercode_paper.compat.images import DATA, image_for
from intercode_sandbox import get_provider

bash_image_name = "intercode-bash"
sql_image_name = "docker-env-sql"
bash_test_data = str(DATA / "bash_queries.json")
sql_test_data = str(DATA / "sql_queries.csv")


def bash_build_docker() -> None:
    """Build the image ``intercode-bash``, unless it exists. The build needs no Docker."""
    get_provider().digest(image_for(bash_image_name))


def sql_build_docker() -> None:
    """Do nothing, because no engine needs an image: SQLite, the default, opens databases' files."""
