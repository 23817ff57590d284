#!/usr/bin/env bash
# What several devices do together, held against one of them.
#   profiles/gpus.sh [OUT]                        OUT: a folder, profiles/out where none is given
# Set DEVICES (cuda:0,1), PARALLELS (replicas stages), TAILGRAPH, MODEL, DTYPE, DTYPES, PROMPTS, FEW_PROMPTS, SEQUENCES, TOKENS, ROWS,
# STOPPED_ROWS, STOPPED_TOKENS, STOPPED_SECONDS, REPEATS or PARTS (some of bits, stopped, score, generate, one and rival) for something
# else than below. DEVICES=cpu:0,1 DTYPE=f32 DTYPES=f32 MODEL=random:tiny runs all of it without a GPU.
# Leaves in OUT
#   gpus-bits.txt          goldens on all devices, as replicas and as stages; each recorded run, taken again on the first device
#                          alone
#   gpus-stopped.txt       STOPPED_ROWS rows of STOPPED_TOKENS new tokens and up to half as many more, in how many seconds: undisturbed,
#                          and with the host stopped for STOPPED_SECONDS at its first answer; that run, taken again on the first device
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
stopped_rows=${STOPPED_ROWS:-1536}
stopped_tokens=${STOPPED_TOKENS:-700}
stopped_seconds=${STOPPED_SECONDS:-5}
repeats=${REPEATS:-3}
read -ra parts <<<"${PARTS:-bits stopped score generate one rival}"
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

# some_rows COUNT LEAST SPAN: so many rows, of LEAST new tokens and up to SPAN - 1 more
some_rows() {
  local i
  for ((i = 0; i < $1; i++)); do
    printf '{"id": "%d", "prompt": "Row %d of many, %d", "max_new_tokens": %d, "temperature": %d}\n' \
      "$i" "$i" "$((i * i))" "$(($2 + i % $3))" "$((i % 2))"
  done >"$out/gpus-rows.jsonl"
}

# answers PARALLEL MAX_SEQS OPTION...: `answering` is the command that answers these rows into gpus-answers.jsonl.
answers() {
  answering=("$tailgraph" generate --model "$model" --dtype "$dtype" --device "$devices" --parallel "$1" --max-seqs "$2"
    --input "$out/gpus-rows.jsonl" --output "$out/gpus-answers.jsonl" --overwrite --quiet "${@:3}")
}

# take_again PARALLEL RECORD: what such a run has recorded
take_again() {
  local i runs record
  case $1 in
    replicas) for ((i = 0; i < count; i++)); do runs+=("$2.$i.jsonl"); done ;;
    stages) runs=("$2.jsonl") ;;
  esac
  for record in "${runs[@]}"; do
    echo "${record##*/}, taken again on $one:"
    "$tailgraph" replay --model "$model" --device "$one" --record "$record"
  done
}

replays() { # PARALLEL
  local record=$out/gpus-record-$1
  some_rows "$rows" 16 48
  answers "$1" 64 --record "$record.jsonl"
  "${answering[@]}"
  take_again "$1" "$record"
}

seconds_since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.2f s\n", to - from }'; }

# With room for twice SEQUENCES a device.
stopped() { # PARALLEL
  local record=$out/gpus-stopped-$1 most=$((2 * sequences)) start process
  [ "$1" = stages ] && most=$((most * count))
  some_rows "$stopped_rows" "$stopped_tokens" $((stopped_tokens / 2))
  start=$EPOCHREALTIME
  answers "$1" "$most"
  "${answering[@]}"
  echo "$stopped_rows rows on $devices as $1: $(seconds_since "$start")"
  start=$EPOCHREALTIME
  answers "$1" "$most" --record "$record.jsonl"
  "${answering[@]}" &
  process=$!
  # Whatever ends this before its time: the program is not left behind, stopped and with the GPUs.
  trap 'kill "$process"; kill -CONT "$process"' EXIT
  until grep -qs '"output_ids"' "$out/gpus-answers.jsonl.partial"; do
    kill -0 "$process" 2>/dev/null || break
    sleep 0.01
  done
  kill -STOP "$process" 2>/dev/null || {
    trap - EXIT
    echo "the run was over before it could be stopped: set STOPPED_ROWS higher" >&2
    return 1
  }
  sleep "$stopped_seconds"
  kill -CONT "$process"
  wait "$process"
  trap - EXIT
  echo "... its host stopped for $stopped_seconds s: $(seconds_since "$start")"
  take_again "$1" "$record"
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
    stopped)
      echo "== $out/gpus-stopped.txt" >&2
      for parallel in "${parallels[@]}"; do stopped "$parallel"; done 2>&1 | tee "$out/gpus-stopped.txt"
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
      echo "PARTS $part: expected bits, stopped, score, generate, one or rival" >&2
      exit 2
      ;;
  esac
done
[ ${#reports[@]} = 0 ] && exit
python3 "$here/summary.py" devices "${reports[@]}" | tee "$out/gpus.txt"
