"""A sandbox that is made ready for a request that is expected is as any, and for no other."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from intercode.sandbox import Limits
from intercode.sandbox.native.provider import NativeProvider
from intercode.units import MIB


@pytest.mark.parametrize("pause", [0.0, 0.05], ids=["at once", "when one may be ready"])
def test_each_has_what_was_asked_for(pause: float) -> None:
    with closing(NativeProvider()) as provider:
        for mebibytes in (8, 8, 8, 16, 8, 8, 8, 8):
            sandbox = provider.start("host", Limits(disk=mebibytes * MIB))
            try:
                shown = sandbox.exec(["df", "--block-size=1M", "--output=size", "/"]).stdout
                assert int(shown.split()[-1]) == mebibytes
                assert sandbox.changes() == []
                sandbox.write_file("/left", b"behind")
                time.sleep(pause)  # allow sleep: the next may be made ready now, and need not
            finally:
                sandbox.close()
