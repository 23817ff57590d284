#!/usr/bin/env bash
# Counters of the kernels of one step, by Nsight Compute, in both of the host's ways to launch, and a table of them:
#   profiles/compute.sh [OUT]                     OUT: a folder, profiles/out where none is given
# Set TAILGRAPH, MODEL, DTYPE, WAYS, STAGE, KIND, BUCKET, KERNEL (a regular expression), LAUNCHES, SKIP or SET for
# something else than below. The kernels are the same ones that a GPU launches by itself, which has no range to find a
# step by.
# Leaves OUT/compute-WAY.ncu-rep, which Nsight Compute opens, OUT/compute-WAY.csv (all counters) and OUT/compute-WAY.txt.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"
read -ra ways <<<"${WAYS:-host-kernels host-graph}"
stage=${STAGE:-0}
kind=${KIND:-decode}
bucket=${BUCKET:-8}
launches=${LAUNCHES:-40}
skip=${SKIP:-0}
counters=${SET:-full}

options=(--tool compute --stage "$stage" --kind "$kind" --bucket "$bucket" --launches "$launches" --skip "$skip" --set "$counters")
[ -n "${KERNEL:-}" ] && options+=(--kernel "$KERNEL")
case $kind in
  # There are as many sequences as a step of the bucket has rows, none of which ends before the last has come in.
  decode) prompts=$bucket words=4 step=() tokens=$((4 + bucket / 8)) ;;
  # One prompt that fills most of it, at a token a byte, which random: models have.
  mixed) prompts=1 words=$((bucket / 4 - 8)) step=(--step-tokens "$bucket") tokens=4 ;;
  *)
    echo "KIND $kind: expected decode or mixed, the steps that \`generate\` has" >&2
    exit 2
    ;;
esac
rows=$out/compute.jsonl
# No two prompts alike: rows that are alike go to the same experts.
text=$(printf 'row %.0s' $(seq 1 "$words"))
for ((i = 0; i < prompts; i++)); do
  printf '{"id": "%d", "prompt": "%03d %s"}\n' "$i" "$i" "$text"
done >"$rows"
ncu=$(tool_of --tool compute)

for way in "${ways[@]}"; do
  report=$out/compute-$way
  echo "== $way" >&2
  # A kernel is run again for each group of counters, so a step takes long.
  "$tailgraph" profile --overwrite "${options[@]}" -o "$report" -- \
    generate --model "$model" --device cuda --dtype "$dtype" --launch "$way" --max-seqs "$prompts" \
    --max-new-tokens "$tokens" "${step[@]}" --step-timeout-ms 600000 --input "$rows" --output "$report.jsonl" --overwrite --quiet
  "$ncu" --import "$report.ncu-rep" --page raw --csv --print-units base >"$report.csv"
  {
    echo "$model in $dtype, --launch $way: stage $stage $kind $bucket, kernels ${KERNEL:-all}, $(date -u +%F)"
    python3 "$here/summary.py" kernels "$report.csv"
  } >"$report.txt"
  echo "$report.txt"
done
