#!/usr/bin/env bash
# What several devices do together, held against one of them.
#   profiles/gpus.sh [OUT]                        OUT: a folder, profiles/out where none is given
# Set DEVICES (cuda:0,1), PARALLELS (replicas stages), TAILGRAPH, MODEL, DTYPE, DTYPES, PROMPTS, FEW_PROMPTS, SEQUENCES, TOKENS, ROWS,
# REPEATS or PARTS (some of bits, score, generate, one and rival) for something else than below. DEVICES=cpu:0,1 DTYPE=f32 DTYPES=f32
# MODEL=random:tiny runs all of it without a GPU.
# Leaves in OUT
#   gpus-bits.txt          goldens on all devices, as replicas and as stages; each recorded run, taken again on the first device
#                          alone
#   gpus-score-*.json      PROMPTS prompts of 32 tokens, on one device and on all; FEW_PROMPTS, in whose time the ramp shows
#   gpus-generate-*.json   SEQUENCES sequences at once on one device, as many on each of all, and those of all on one
#   gpus-one-*.json        one sequence, on one device and on all
#   gpus-rival.json        the stages of all GPUs, handed on by the GPUs and by a host that launches their graphs, events and copies
#                          ahead of them, beside 0 and 64 busy threads (not of CPUs)
#   gpus-rival-one.json    the same of one sequence, whose steps the host launches behind each other too (host-graph-ahead)
#   gpus.txt               tokens a second of these, and how many times one device's that is
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"
devices=${DEVICES:-cuda:0,1}
one=${devices%%,*}
commas=${devices//[^,]/}
count=$((${#commas} + 1))
[ "$count" -gt 1 ] || {
  echo "DEVICES $devices: expected at least two, such as cuda:0,1" >&2
  exit 2
}
read -ra dtypes <<<"${DTYPES:-f32 bf16}"
prompts=${PROMPTS:-16384}
few=${FEW_PROMPTS:-1024}
sequences=${SEQUENCES:-256}
tokens=${TOKENS:-256}
rows=${ROWS:-512}
repeats=${REPEATS:-3}
read -ra parts <<<"${PARTS:-bits score generate one rival}"
read -ra parallels <<<"${PARALLELS:-replicas stages}"
reports=()

# bench NAME KIND OPTION...
bench() {
  local report=$out/gpus-$1.json
  echo "== $report" >&2
  "$tailgraph" bench "$2" --model "$model" --dtype "$dtype" "${@:3}" --repeats "$repeats" --quiet --format json >"$report.partial"
  mv "$report.partial" "$report"
  reports+=("$report")
}

# on one|replicas|stages: `where` is the options for that.
on() {
  case $1 in
    one) where=(--device "$one") ;;
    *) where=(--device "$devices" --parallel "$1") ;;
  esac
}

# generate NAME one|replicas|stages SEQUENCES
generate() {
  on "$2"
  bench "generate-$1" serve "${where[@]}" --request-rate inf --batch "$3" --num-prompts $((4 * $3)) --prompt-len 32 --gen-len "$tokens"
}

goldens() { # PARALLEL
  local golden=$here/../tests/fixtures/goldens/lfm2moe-tiny-a type
  for type in "${dtypes[@]}"; do
    echo "goldens in $type on $devices as $1:"
    "$tailgraph" score --model "$golden" --device "$devices" --parallel "$1" --dtype "$type" --input "$golden/golden.safetensors" \
      --expect "$golden/golden.safetensors" --quiet
  done
}

replays() { # PARALLEL
  local record=$out/gpus-record-$1 i runs
  for ((i = 0; i < rows; i++)); do
    printf '{"id": "%d", "prompt": "Row %d of many, %d", "max_new_tokens": %d, "temperature": %d}\n' \
      "$i" "$i" "$((i * i))" "$((16 + i % 48))" "$((i % 2))"
  done >"$out/gpus-rows.jsonl"
  "$tailgraph" generate --model "$model" --dtype "$dtype" --device "$devices" --parallel "$1" --max-seqs 64 --input "$out/gpus-rows.jsonl" \
    --output "$out/gpus-answers.jsonl" --overwrite --record "$record.jsonl" --quiet
  case $1 in
    replicas) for ((i = 0; i < count; i++)); do runs+=("$record.$i.jsonl"); done ;;
    stages) runs=("$record.jsonl") ;;
  esac
  for record in "${runs[@]}"; do
    echo "${record##*/}, taken again on $one:"
    "$tailgraph" replay --model "$model" --device "$one" --record "$record"
  done
}

for part in "${parts[@]}"; do
  case $part in
    bits)
      echo "== $out/gpus-bits.txt" >&2
      # The first that fails says so there, and ends this.
      for parallel in "${parallels[@]}"; do
        goldens "$parallel"
        replays "$parallel"
      done 2>&1 | tee "$out/gpus-bits.txt"
      ;;
    score)
      for parallel in one "${parallels[@]}"; do
        on "$parallel"
        name=score-$parallel
        bench "$name-last" score "${where[@]}" --batch "$prompts" --prompt-len 32 --logits last
        bench "$name-few" score "${where[@]}" --batch "$few" --prompt-len 32 --logits last
        # Logits of all positions, without the way to the host, which devices share.
        [ "${one%%:*}" = cpu ] ||
          bench "$name-all" score "${where[@]}" --batch "$prompts" --prompt-len 32 --logits all --logits-on-device
      done
      ;;
    generate)
      generate one one "$sequences"
      generate one-with-all one $((sequences * count))
      for parallel in "${parallels[@]}"; do generate "$parallel" "$parallel" $((sequences * count)); done
      ;;
    one)
      for parallel in one "${parallels[@]}"; do
        on "$parallel"
        bench "one-$parallel" serve "${where[@]}" --max-concurrency 1 --num-prompts 4 --prompt-len 32 --gen-len "$tokens"
      done
      ;;
    rival)
      [ "${one%%:*}" = cpu ] && continue
      on stages
      bench rival serve "${where[@]}" --launch device-graph,host-graph --cpu-load 0,64 --request-rate inf \
        --batch $((sequences * count)) --num-prompts $((2 * sequences * count)) --prompt-len 32 --gen-len "$tokens"
      bench rival-one serve "${where[@]}" --launch device-graph,host-graph,host-graph-ahead --cpu-load 0,64 --max-concurrency 1 \
        --num-prompts 4 --prompt-len 32 --gen-len "$tokens"
      ;;
    *)
      echo "PARTS $part: expected bits, score, generate, one or rival" >&2
      exit 2
      ;;
  esac
done
[ ${#reports[@]} = 0 ] && exit
python3 "$here/summary.py" devices "${reports[@]}" | tee "$out/gpus.txt"
