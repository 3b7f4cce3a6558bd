#!/bin/bash
# Gives 1 if the task's command succeeds, in the folder that the agent began in; else 0.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin
export PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1
tests=$(cd "$(dirname "$0")" && pwd)
cd "$(cat "$tests/folder")" && bash --norc --noprofile -c "$(cat "$tests/verify.sh")" &&
    reward=1 || reward=0
echo $reward >/logs/verifier/reward.txt
