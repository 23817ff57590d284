#!/usr/bin/env bash
# A job array under Slurm: a shard a task, then one file of them.
#   MODEL=... INPUT=rows.jsonl OUTPUT=answers.jsonl sbatch --array=0-7 --gpus=1 slurm.sh [OPTION OF generate ...]
#   tailgraph merge answers.*.jsonl -o answers.jsonl
# A task whose node is lost is run again by Slurm, and one that was killed runs again by itself, three times at most: each
# goes on from its journal. SHARDS is the number of shards where --array names only some of them.
#SBATCH --job-name=tailgraph
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail
: "${MODEL:?which model}" "${INPUT:?a file of rows}" "${OUTPUT:?a file on a file system that all nodes share}"
shards=${SHARDS:-$((SLURM_ARRAY_TASK_MAX + 1))}
shard=$SLURM_ARRAY_TASK_ID
# answers.jsonl: answers.3.jsonl. A point in a folder's name is none of the file's.
case ${OUTPUT##*/} in
  *.*) output=${OUTPUT%.*}.$shard.${OUTPUT##*.} ;;
  *) output=$OUTPUT.$shard ;;
esac

# A step of its own: it is told when the job is to end, and ends in order.
srun "${TAILGRAPH:-tailgraph}" generate --resume --model "$MODEL" --input "$INPUT" \
  --shard "$shard/$shards" --output "$output" "$@"
code=$?

# 2: the command line is wrong; 3: it is done, and some rows are in error. Neither is better the next time.
if [ $code -ne 0 ] && [ $code -ne 2 ] && [ $code -ne 3 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 3 ]; then
  # Not by SLURM_JOB_ID: of one task it is that of the whole array.
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_$shard"
fi
exit $code
