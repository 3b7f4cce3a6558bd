"""Where the recorded runs are, if they are at all. They are read, never copied."""

import pytest

from sources import ROOT

UPSTREAM = ROOT.parent / "shared" / "upstream"
BASH_RESULTS = UPSTREAM / "data" / "results" / "bash"
needs_upstream = pytest.mark.skipif(
    not BASH_RESULTS.is_dir(), reason=f"no recorded runs in {UPSTREAM}"
)
