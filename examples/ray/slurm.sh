#!/bin/bash
# A run on the nodes of a Slurm job: sbatch --nodes 4 slurm.sh bash --agent oracle --workers 64
#SBATCH --job-name intercode
#SBATCH --ntasks-per-node 1
#SBATCH --cpus-per-task 16
#SBATCH --time 04:00:00
set -euo pipefail
export RAY_USAGE_STATS_ENABLED=0
# Whoever has the token can run code on the nodes: the job's alone.
RAY_AUTH_TOKEN=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export RAY_ADDRESS=$head:6379

# The head has no processors to give away if the job has other nodes: the driver works there.
own=$((SLURM_JOB_NUM_NODES > 1 ? 0 : SLURM_CPUS_PER_TASK))
srun --nodes 1 --ntasks 1 --nodelist "$head" --overlap \
    ray start --head --port 6379 --num-cpus "$own" --include-dashboard false --block &
until ray status >/dev/null 2>&1; do sleep 1; done
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --nodes $((SLURM_JOB_NUM_NODES - 1)) --ntasks $((SLURM_JOB_NUM_NODES - 1)) \
        --exclude "$head" --overlap \
        ray start --address "$RAY_ADDRESS" --num-cpus "$SLURM_CPUS_PER_TASK" --block &
fi
# The name of the folder is the job's: a job that is queued again goes on with its run.
intercode run "$@" --on ray --out "runs/slurm-$SLURM_JOB_ID"
