#!/bin/bash
# Gives 1 if all tests of the issue pass, with the repository's own tests as they were; else 0.
tests=$(cd "$(dirname "$0")" && pwd)
commit=$(cat "$tests/commit")
reward=0
cd "$(cat "$tests/folder")" &&
    git config --global --add safe.directory "$PWD" &&
    xargs -0 -r git checkout -q "$commit" -- <"$tests/fixed" &&
    while IFS= read -r -d '' file; do rm -rf -- "$file"; done <"$tests/absent" &&
    { [ ! -s "$tests/test.patch" ] || git apply --whitespace=nowarn "$tests/test.patch"; } &&
    bash "$tests/run.sh" && reward=1
echo $reward >/logs/verifier/reward.txt
