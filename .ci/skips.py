"""Fails if a test was skipped for want of something that `make test` can install."""

import re
import sys
import xml.etree.ElementTree as ET

import starved

# What no installation on this machine can give, and what is not meant for an engine.
ALLOWED = re.compile(r"no recorded runs in|needs cgroup v|got empty parameter set|not for [\w ]+: ")


def main(*paths: str) -> int:
    """Print the skips of these reports; 1 if one of them is not allowed."""
    bad = late = 0
    cases = [case for path in paths for case in ET.parse(path).getroot().iter("testcase")]
    for case in cases:
        for skip in case.iter("skipped"):
            reason = skip.get("message", "")
            if reason == starved.REASON:
                late += 1
                continue
            allowed = bool(ALLOWED.search(reason))
            bad += not allowed
            mark = "allowed" if allowed else "NOT ALLOWED"
            print(f"skip {mark}: {case.get('classname')}::{case.get('name')}: {reason}")
    if late:
        print(f"NOT RUN: {late} of {len(cases)} tests, as {starved.REASON}")
    if bad:
        print(f"{bad} tests were skipped that `make test` should have made possible")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
