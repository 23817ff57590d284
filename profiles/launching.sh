#!/usr/bin/env bash
# Every way that CUDA has of launching a step, side by side: with an idle host, beside busy threads, and beside other processes on
# the GPU; the limits of launching on the device; an atomic queue by itself. On one GPU, in under 5 minutes:
#   profiles/launching.sh [OUT]                   OUT: a folder, profiles/out where none is given
# Set TAILGRAPH, DEVICE (cuda), WAYS (all, or some with commas), KERNELS (32), STEPS (1500), THREADS (64), PROCESSES (1,2),
# SECONDS_EACH (1.5) or PARTS (some of idle, threads, processes, limits, queue and timelines) for something else than below.
# Leaves in OUT
#   launching.jsonl        a line of JSON for each way and load
#   limits.jsonl           ... for each limit
#   queue.jsonl            ... for each way to claim items
#   timelines.txt          with PARTS=timelines alone, which needs Nsight Systems: what it shows of each way's kernels and calls, and
#                          timelines-WAY.nsys-rep, which it opens
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
    timelines)
      nsys=$("$tailgraph" profile --print -- true)
      nsys=${nsys%% profile *}
      read -ra ways <<<"${WAYS:-graph-queued kernels-spin graph-spin graph-block graph-event graph-params graph-update graph-recapture device-sibling device-tail device-scheduler device-forget conditional persistent cdp cdp-stream}"
      : >"$out/timelines.txt"
      for way in "${ways[@]}"; do
        report=$out/timelines-$way
        "$nsys" profile --trace=cuda --cuda-graph-trace=graph:host-and-device --force-overwrite=true --output="$report" \
          "$tailgraph" bench launch --device "$device" --launch "$way" --kernels 8 --steps 200 --most-seconds 1 --repeats 1 --quiet \
          >/dev/null
        {
          echo "== $way"
          "$nsys" stats --force-export=true --format column --report cuda_gpu_kern_sum,cuda_api_sum "$report.nsys-rep" |
            { grep -v '^ *$\|^ *Processing\|^ *Generating\|^ *SKIPPED' || true; } | cut -c1-160 | head -n 24
          echo "graph launches:"
          python3 "$here/summary.py" graphs "$report.sqlite" | head -n 12
        } >>"$out/timelines.txt"
      done
      ;;
    *)
      echo "PARTS $part: expected idle, threads, processes, limits, queue or timelines" >&2
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
