#!/bin/bash
# Gives 1 if the answer is one of the flags, of which only hashes are here; else 0.
tests=$(cd "$(dirname "$0")" && pwd)
answer=/logs/agent/answer.txt
reward=0
if [ -f "$answer" ]; then
    hash=$(tr -d '[:space:]' <"$answer" | sha256sum | cut -c -64)
    grep -qxF "$hash" "$tests/flags" && reward=1
fi
echo $reward >/logs/verifier/reward.txt
