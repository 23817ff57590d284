#!/usr/bin/env bash
# Runs every test that needs a GPU: tests/gpu/run.sh [filter]
# With TAILGRAPH_GPU_TESTS set to a test binary built elsewhere (cargo test --features lab --test gpu --test lab --test gpu_engine --test gpu_soak --no-run),
# runs that one: a machine with a GPU needs no Rust.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [ ! -e /dev/nvidiactl ]; then
  echo "tests/gpu/run.sh: no GPU here, nothing was run" >&2
  exit 1
fi
# NCCL does without multicast, as the command line has it.
export NCCL_NVLS_ENABLE=0
if [ -n "${TAILGRAPH_GPU_TESTS:-}" ]; then
  exec "$TAILGRAPH_GPU_TESTS" --include-ignored "$@"
fi
exec cargo test --features lab --test gpu --test lab --test gpu_engine --test gpu_soak -- --include-ignored "$@"
