#!/bin/bash
# Gives the reward that check.py writes, or 0 if check.py fails.
tests=$(cd "$(dirname "$0")" && pwd)
cd "$(cat "$tests/folder")" && python3 "$tests/check.py" || echo 0 >/logs/verifier/reward.txt
