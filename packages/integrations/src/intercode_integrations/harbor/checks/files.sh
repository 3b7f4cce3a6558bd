#!/bin/bash
# Gives 1 if the files are as a solution leaves them, and the answer is what it prints; else 0.
# Each folder "gold-N" describes one solution's result: files by name, mode, owner and hash, and the
# hash of the answer.
tests=$(cd "$(dirname "$0")" && pwd)
answer=/logs/agent/answer.txt
reward=0
for gold in "$tests"/gold-*; do
    if [ -e "$gold/answer" ]; then
        [ -f "$answer" ] || continue
        said=$(sed $'s/[ \t\r\v\f]*$//' "$answer" | tr -d '\0')
        [ "$(printf %s "$said" | sha256sum | cut -c -64)" = "$(cat "$gold/answer")" ] || continue
    fi
    bash "$tests/list.sh" "$tests" | diff "$gold/files" - && reward=1
done
echo $reward >/logs/verifier/reward.txt
