#!/usr/bin/env bash
# A timeline of a short run in each way to launch, by Nsight Systems, and what it shows as text:
#   profiles/systems.sh [OUT]                     OUT: a folder, profiles/out where none is given
# Set TAILGRAPH, MODEL, DTYPE, WAYS, PROMPTS, TOKENS or SYSTEM_WIDE (1 or 0) for something else than below; DEVICES=cuda:0,1 for
# stages of the model on several GPUs, whose ranges have names such as `stage 1 on cuda:1`; NODES=1 for each kernel in the graphs
# that the host launches, by step and layer.
# Leaves OUT/systems-WAY.nsys-rep, which Nsight Systems opens, and OUT/systems-WAY.txt; of several GPUs systems-stages-WAY.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"
read -ra ways <<<"${WAYS:-host-kernels host-graph device-graph}"
prompts=${PROMPTS:-8}
tokens=${TOKENS:-64}
devices=${DEVICES:-cuda}
parallel=()
of=systems
if [[ $devices == *,* ]]; then
  parallel=(--parallel stages)
  of=systems-stages
fi
# Other processes can be seen by root alone.
system_wide=${SYSTEM_WIDE:-$([ "$(id -u)" = 0 ] && echo 1 || echo 0)}

options=()
[ "$system_wide" = 1 ] && options+=(--system-wide)
[ -n "${NODES:-}" ] && options+=(--nodes)
rows=$out/prompts.jsonl
for ((i = 0; i < prompts; i++)); do
  printf '{"id": "%d", "prompt": "Row %d of a profile"}\n' "$i" "$i"
done >"$rows"
nsys=$(tool_of)

for way in "${ways[@]}"; do
  report=$out/$of-$way
  echo "== $way" >&2
  "$tailgraph" profile --overwrite -o "$report" "${options[@]}" -- \
    generate --model "$model" --device "$devices" "${parallel[@]}" --dtype "$dtype" --launch "$way" --max-seqs "$prompts" \
    --max-new-tokens "$tokens" --input "$rows" --output "$report.jsonl" --overwrite --quiet
  {
    echo "$model in $dtype on $devices, --launch $way: $prompts prompts, $tokens new tokens each, $(date -u +%F)"
    "$nsys" stats --force-export=true --report nvtx_sum,cuda_gpu_kern_sum,cuda_api_sum "$report.nsys-rep"
    if [ -n "${NODES:-}" ]; then
      python3 "$here/summary.py" nodes "$report.sqlite"
    else
      echo "graph launches:"
      python3 "$here/summary.py" graphs "$report.sqlite"
    fi
  } >"$report.txt"
  echo "$report.txt"
done
