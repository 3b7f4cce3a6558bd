"""A sandbox provider, where this machine permits one."""

import pytest

from intercode.errors import SandboxUnavailableError
from intercode.paper.container import PaperImage
from intercode.sandbox import get_provider


@pytest.fixture(scope="session")
def provider():
    found = get_provider("native")
    try:
        found.start("host").close()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    return found


@pytest.fixture(scope="module")
def image(provider, tmp_path_factory):
    """The host's programs, and a small file system in `/data`."""
    script = tmp_path_factory.mktemp("image") / "setup_fs_9.sh"
    script.write_text(
        "mkdir -p /data/dir1 /data/empty/deeper\n"
        "echo hello > /data/a.txt; echo there > /data/dir1/b.txt\n"
        "echo old > /data/old.txt; touch -d '2023-05-02 UTC' /data/old.txt\n"
    )
    made = PaperImage(provider, f"host+{script}")
    yield made
    made.close()
