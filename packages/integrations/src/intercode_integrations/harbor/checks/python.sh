#!/bin/bash
# Gives the share that the check of the answer finds right.
tests=$(cd "$(dirname "$0")" && pwd)
cd "$(cat "$tests/folder")" && python3 "$tests/check.py" || echo 0 >/logs/verifier/reward.txt
