#!/usr/bin/env bash
# The time of decode steps on one GPU, as README has it.
#   profiles/decode.sh [OUT]                      OUT: a folder, profiles/out where none is given
# Set TAILGRAPH, MODEL, KERNEL_FILE, DTYPE, BATCHES, TYPE_BATCHES, CONTEXTS, TOKENS, REPEATS or PARTS (some of ways, types,
# contexts and kernels) for something else than below. BATCHES ascend. CONTEXTS are SEQUENCESxCONTEXT+NEW: so many of those
# tokens are new, and all prompts must have come in before the first sequence has its own.
# Leaves in OUT
#   decode-ways.json       device-graph and host-graph side by side
#   decode-types.json      bare graphs in f32 and bf16
#   decode-context-*.json  of long contexts
#   decode-kernels.txt     kernel by kernel, at every bucket that a run of ever fewer sequences passes
#   decode.txt             p50 and p99 of each step of these files, and the least time that its bytes and products take
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"
batches=${BATCHES:-1,2,4,8,16,32,64,128,256}
repeats=${REPEATS:-5}
tokens=${TOKENS:-64}
read -ra contexts <<<"${CONTEXTS:-32x4296+400 1x100000+40}"
read -ra parts <<<"${PARTS:-ways types contexts kernels}"
of=(--model "$model" --device cuda)
[ -n "${KERNEL_FILE:-}" ] && of+=(--kernel-file "$KERNEL_FILE")
typed=("${of[@]}" --dtype "$dtype")
reports=()

# bench NAME OPTION...
bench() {
  local report=$out/decode-$1.json
  echo "== $report" >&2
  "$tailgraph" bench decode "${@:2}" --format json >"$report.partial"
  mv "$report.partial" "$report"
  reports+=("$report")
}

for part in "${parts[@]}"; do
  case $part in
    ways)
      bench ways "${typed[@]}" --launch device-graph,host-graph --batch "$batches" --gen-len "$tokens" --repeats "$repeats"
      ;;
    types)
      bench types "${of[@]}" --dtype bf16,f32 --launch bare --batch "${TYPE_BATCHES:-1,8,16,32,64}" --gen-len 48 --repeats 1
      ;;
    contexts)
      for context in "${contexts[@]}"; do
        [[ $context =~ ^([0-9]+)x([0-9]+)\+([0-9]+)$ ]] || {
          echo "CONTEXTS $context: expected SEQUENCESxCONTEXT+NEW, such as 32x4296+400" >&2
          exit 2
        }
        bench "context-${BASH_REMATCH[1]}x${BASH_REMATCH[2]}" "${typed[@]}" --launch device-graph --batch "${BASH_REMATCH[1]}" \
          --prompt-len $((BASH_REMATCH[2] - BASH_REMATCH[3])) --gen-len "${BASH_REMATCH[3]}" --warm-up 0 --repeats 1
      done
      ;;
    kernels)
      most=${batches##*,}
      rows=$out/decode-kernels.jsonl
      # Half of those that are left end together, after 22 more steps; no two prompts are alike.
      for ((i = 0, left = most, new = 24; left > 0; left -= half, new += 22)); do
        half=$(((left + 1) / 2))
        for ((of_these = 0; of_these < half; of_these++, i++)); do
          printf '{"id": "%d", "prompt": "%04d", "max_new_tokens": %d}\n' "$i" "$i" "$new"
        done
      done >"$rows"
      echo "== $out/decode-kernels.txt" >&2
      "$tailgraph" trace --kernels "${typed[@]}" --launch device-graph --max-seqs "$most" --step-tokens 2048 --input "$rows" \
        --output "$out/decode-kernels.json" --answers "$out/decode-kernels-answers.jsonl" 2>"$out/decode-kernels.txt" || {
        tail -n 3 "$out/decode-kernels.txt" >&2
        exit 1
      }
      ;;
    *)
      echo "PARTS $part: expected ways, types, contexts or kernels" >&2
      exit 2
      ;;
  esac
done
[ ${#reports[@]} = 0 ] && exit
python3 "$here/summary.py" steps "${reports[@]}" | tee "$out/decode.txt"
