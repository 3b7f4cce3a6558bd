"""The image of this machine holds nothing of InterCode."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

import intercode
import intercode_sandbox
from sandbox.images import as_root
from sandbox.images.conftest import cache as cache


@as_root
@pytest.mark.parametrize("layout", ["lib/site-packages", "packages/{}/src"])
def test_host_hides_intercode_itself(tmp_path: Path, layout: str) -> None:
    """Golds, and the puzzles' generator, wherever below /usr it is installed or checked out.

    Also in a process that starts a sandbox before it imports the gym, or imports only sandboxes.
    """
    with tempfile.TemporaryDirectory(dir="/usr/local", prefix="intercode-test-") as top:
        Path(top).chmod(0o755)
        ignored = shutil.ignore_patterns("__pycache__")
        sites = []
        for name, module in {"gym": intercode, "sandbox": intercode_sandbox}.items():
            sites.append(Path(top, layout.format(name)))
            package = sites[-1] / module.__name__
            shutil.copytree(Path(str(module.__file__)).parent, package, ignore=ignored)
            info = sites[-1] / f"intercode_{name}-{intercode.__version__}.dist-info"
            info.mkdir()
            Path(info, "direct_url.json").write_text("{}")
            if layout != "lib/site-packages":
                Path(sites[-1].parent, "pyproject.toml").touch()
        Path(top, "pyproject.toml").touch()
        Path(top, "others").mkdir()
        Path(top, "others", "program").touch()
        code = """
            import json, sys
            from intercode_sandbox import get_provider
            def look():
                find = ["find", sys.argv[1], "!", "-type", "d"]
                return sorted(get_provider().start().exec(find).stdout.decode().split())
            before = look()
            import intercode
            print(json.dumps([intercode.__file__, before, look()]))
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), top],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([*map(str, sites), *sys.path]),
                "INTERCODE_CACHE": f"{top}/cache",
            },
            capture_output=True,
            text=True,
            check=True,
        )
        seen = [f"{top}/others/program", f"{top}/pyproject.toml"] if len(set(sites)) == 1 else []
        assert json.loads(done.stdout) == [str(sites[0] / "intercode/__init__.py"), seen, seen]
