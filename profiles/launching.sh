#!/usr/bin/env bash
# Every way that CUDA has of launching a step, side by side: with an idle host, beside busy threads, and beside other processes on
# the GPU; the limits of launching on the device; an atomic queue by itself. On one GPU, in under 5 minutes:
#   profiles/launching.sh [OUT]                   OUT: a folder, profiles/out where none is given
# Set TAILGRAPH, DEVICE (cuda), WAYS (all, or some with commas), KERNELS (32), STEPS (1500), THREADS (64), PROCESSES (1,2),
# SECONDS_EACH (1.5) or PARTS (some of idle, threads, processes, limits and queue) for something else than below.
# Leaves in OUT
#   launching.jsonl        a line of JSON for each way and load
#   limits.jsonl           ... for each limit
#   queue.jsonl            ... for each way to claim items
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"
device=${DEVICE:-cuda}
read -ra parts <<<"${PARTS:-idle threads processes limits queue}"

# launch OPTION...: adds to launching.jsonl what was measured, also where a way failed, whose error ends all of it later.
failed=0
launch() {
  "$tailgraph" bench launch --device "$device" --launch "${WAYS:-all}" --kernels "${KERNELS:-32}" --steps "${STEPS:-1500}" \
    --most-seconds "${SECONDS_EACH:-1.5}" --repeats 1 --format jsonl "$@" >>"$out/launching.jsonl.partial" || failed=$?
}

: >"$out/launching.jsonl.partial"
for part in "${parts[@]}"; do
  echo "== $part" >&2
  case $part in
    idle) launch ;;
    threads) launch --cpu-load "${THREADS:-64}" ;;
    processes) launch --gpu-load "${PROCESSES:-1,2}" ;;
    limits | queue)
      "$tailgraph" bench "$part" --device "$device" --format jsonl >"$out/$part.jsonl.partial"
      mv "$out/$part.jsonl.partial" "$out/$part.jsonl"
      ;;
    *)
      echo "PARTS $part: expected idle, threads, processes, limits or queue" >&2
      exit 2
      ;;
  esac
done
if [ -s "$out/launching.jsonl.partial" ]; then
  mv "$out/launching.jsonl.partial" "$out/launching.jsonl"
else
  rm "$out/launching.jsonl.partial"
fi
exit "$failed"
