#!/usr/bin/env bash
# Every way that CUDA has of launching a step, side by side: with an idle host, beside busy threads, and beside other processes on
# the GPU; the limits of launching on the device; an atomic queue by itself. With two GPUs, rows that go from one to the other in every
# way (PARTS=gpus, in under 2 minutes). On one GPU, in under 5 minutes:
#   profiles/launching.sh [OUT]                   OUT: a folder, profiles/out where none is given
# Set LAB (target/release/examples/lab), DEVICE (cuda), WAYS (all, or some with commas), KERNELS (32), STEPS (1500), THREADS (64), PROCESSES (1,2),
# SECONDS_EACH (1.5; of gpus 0.25) or PARTS (some of idle, threads, processes, limits, queue, mps, gpus and timelines) for something
# else than below; for gpus also DEVICES (cuda:0,1), HANDOVERS (all), ROWS (1,8,64,512) and ROWS_BESIDE (8), the rows beside loads.
# Leaves in OUT
#   launching.jsonl        a line of JSON for each way and load
#   limits.jsonl           ... for each limit
#   queue.jsonl            ... for each way to claim items
#   launching-slices.jsonl, launching-mps.jsonl, launching-mps-share.jsonl
#                          with PARTS=mps, as launching.jsonl beside processes: by time slices, under MPS, and under MPS with MPS_SHARE
#                          percent (30) of the SMs for each process. Of 8 kernels and 250 steps, since under MPS each kernel may wait for
#                          other processes' (KERNELS, STEPS), and without the ways that launch kernels from kernels, which MPS refuses.
#                          Its daemon is started for this, with folders of its own, and ended. Where there is none, or it may not run,
#                          that is said and all else goes on
#   handover.jsonl         with PARTS=gpus, a line for each way, number of rows and load
#   timelines.txt          with PARTS=timelines alone, which needs Nsight Systems: what it shows of each way's kernels and calls, and
#                          timelines-WAY.nsys-rep, which it opens
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"
lab=${LAB:-$here/../target/release/examples/lab}
command -v "$lab" >/dev/null || {
  echo "$0: found no $lab; build it with 'cargo build --release --features lab --example lab', or set LAB" >&2
  exit 1
}
device=${DEVICE:-cuda}
read -ra parts <<<"${PARTS:-idle threads processes limits queue}"

# Each adds what was measured to a file, also where a way failed, whose error ends all of it later.
failed=0
# launch FILE OPTION...
launch() {
  local file=$1
  shift
  "$lab" launch --device "$device" --ways "${WAYS:-all}" --kernels "${KERNELS:-32}" --steps "${STEPS:-1500}" \
    --most-seconds "${SECONDS_EACH:-1.5}" --repeats 1 --format jsonl "$@" >>"$out/$file.jsonl.partial" || failed=$?
}
# handover OPTION...
handover() {
  "$lab" handover --device "${DEVICES:-cuda:0,1}" --ways "${HANDOVERS:-all}" --steps "${STEPS:-1000}" \
    --most-seconds "${SECONDS_EACH:-0.25}" --repeats 1 --format jsonl "$@" >>"$out/handover.jsonl.partial" || failed=$?
}

# The daemon of MPS, for as long as COMMAND runs: with_mps COMMAND... Its folders are its own, so that nobody else's is met.
with_mps() {
  command -v nvidia-cuda-mps-control >/dev/null || {
    echo "PARTS mps: found no nvidia-cuda-mps-control, expected the driver's; left out" >&2
    return 0
  }
  local folder
  folder=$(mktemp -d)
  mkdir "$folder/pipe" "$folder/log"
  export CUDA_MPS_PIPE_DIRECTORY=$folder/pipe CUDA_MPS_LOG_DIRECTORY=$folder/log
  # It answers once it runs; a server begins with the first process, so ask whether one can.
  if nvidia-cuda-mps-control -d >"$folder/said" 2>&1 && echo "start_server -uid $(id -u)" | timeout 30 nvidia-cuda-mps-control \
    >>"$folder/said" 2>&1 && mps_serves; then
    "$@"
  else
    echo "PARTS mps: MPS may not run here, expected a user and a container that may; left out. It said:" >&2
    cat "$folder/said" "$folder"/log/*.log >&2 2>/dev/null || true
  fi
  echo quit | timeout 30 nvidia-cuda-mps-control >/dev/null 2>&1 || true
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  rm -rf "$folder"
}
# By time slices, and under MPS.
beside_processes() {
  local KERNELS=${KERNELS:-8} STEPS=${STEPS:-250} load=(--gpu-load "0,${PROCESSES:-1,2}")
  local WAYS=${WAYS:-graph-queued,kernels-spin,graph-spin,graph-block,graph-event,graph-params,graph-update,graph-recapture,device-sibling,device-tail,device-scheduler,device-forget,conditional,persistent}
  launch launching-slices "${load[@]}"
  with_mps launch launching-mps "${load[@]}"
  CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=${MPS_SHARE:-30} with_mps launch launching-mps-share "${load[@]}"
}
# Whether a server of the daemon has begun within 10 s.
mps_serves() {
  local server
  for _ in {1..20}; do
    server=$(echo get_server_list | timeout 30 nvidia-cuda-mps-control 2>/dev/null) || return 1
    [ -n "$server" ] && return 0
    sleep 0.5
  done
  return 1
}

for file in launching launching-slices launching-mps launching-mps-share handover; do : >"$out/$file.jsonl.partial"; done
for part in "${parts[@]}"; do
  echo "== $part" >&2
  case $part in
    idle) launch launching ;;
    threads) launch launching --cpu-load "${THREADS:-64}" ;;
    processes) launch launching --gpu-load "${PROCESSES:-1,2}" ;;
    mps) beside_processes ;;
    gpus)
      handover --rows "${ROWS:-1,8,64,512}"
      handover --rows "${ROWS_BESIDE:-8}" --cpu-load "${THREADS:-64}"
      handover --rows "${ROWS_BESIDE:-8}" --gpu-load 1
      ;;
    limits | queue)
      "$lab" "$part" --device "$device" --format jsonl >"$out/$part.jsonl.partial"
      mv "$out/$part.jsonl.partial" "$out/$part.jsonl"
      ;;
    timelines)
      nsys=$(tool_of)
      read -ra ways <<<"${WAYS:-graph-queued kernels-spin graph-spin graph-block graph-event graph-params graph-update graph-recapture device-sibling device-tail device-scheduler device-forget conditional persistent cdp cdp-stream}"
      : >"$out/timelines.txt"
      for way in "${ways[@]}"; do
        report=$out/timelines-$way
        "$nsys" profile --trace=cuda --cuda-graph-trace=graph:host-and-device --force-overwrite=true --output="$report" \
          "$lab" launch --device "$device" --ways "$way" --kernels 8 --steps 200 --most-seconds 1 --repeats 1 --quiet \
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
      echo "PARTS $part: expected idle, threads, processes, limits, queue, mps, gpus or timelines" >&2
      exit 2
      ;;
  esac
done
for file in launching launching-slices launching-mps launching-mps-share handover; do
  if [ -s "$out/$file.jsonl.partial" ]; then
    mv "$out/$file.jsonl.partial" "$out/$file.jsonl"
  else
    rm "$out/$file.jsonl.partial"
  fi
done
exit "$failed"
