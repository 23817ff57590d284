#!/usr/bin/env bash
# Builds the ladder of kernels and runs it on the GPU that is there:
#   profiles/ladder/run.sh [products|attention]
#   profiles/ladder/run.sh --build              builds alone, which needs no GPU
# TAILGRAPH_ARCH: what to compile for (sm_90a; the wgmma step is left out elsewhere). NVCC or CUDA_HOME: which compiler; else that of
# kernels/toolchain, or one on the PATH.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$root/target/ladder

compiler() {
  local found
  for found in "${NVCC:-}" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "$root"/.cuda/lib/python*/site-packages/nvidia/cu13/bin/nvcc \
    "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    [ -n "$found" ] && [ -x "$found" ] && { readlink -f "$found"; return; }
  done
  echo "found no nvcc by NVCC, CUDA_HOME, .cuda, PATH or /usr/local/cuda: run kernels/toolchain, which installs one into .cuda" >&2
  return 1
}

nvcc=$(compiler)
arch=${TAILGRAPH_ARCH:-sm_90a}
options=(-std=c++17 -O3 -gencode "arch=compute_${arch#sm_},code=$arch" -I "$root/kernels" -I "$here")
[ "$arch" != sm_90a ] || options+=(-DLADDER_WGMMA)
mkdir -p "$out"
"$nvcc" "${options[@]}" -L "$(dirname "$(dirname "$nvcc")")/lib" \
  -o "$out/ladder" "$here/ladder.cu"
if [ "${1:-}" != --build ]; then
  exec "$out/ladder" "$@"
fi
