#!/usr/bin/env bash
# Makes a binary that runs on other machines, says what it needs of them, and runs it where there is nothing else:
#   profiles/release.sh FOLDER
# FEATURES: those of the build (cuda); FEATURES= makes one for CPUs alone. What it links to is the system's own: libc, libm and
# libgcc_s. The driver's libcuda.so.1 is opened at run time, so one binary runs with and without a GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
to=${1:?expected a folder for the binary: profiles/release.sh FOLDER}
features=${FEATURES-cuda}
mkdir -p "$to"

[ -z "$features" ] || kernels/toolchain
cargo build --release --locked ${features:+--features "$features"}
built=${CARGO_TARGET_DIR:-target}/release/tailgraph
version=$("$built" --version | awk '{ print $2 }')
binary=$to/tailgraph-$version-$(uname -m)-linux
strip -o "$binary" "$built"

libraries() { ldd "$binary" | grep -o '/[^ ]*'; }
glibc=$(objdump -T "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -n 1)
echo "$binary: $(stat -c %s "$binary") bytes; needs glibc ${glibc#GLIBC_} or newer, and for GPUs an NVIDIA driver of 580 or newer"

# A root folder with the binary and its libraries alone: anything else that it needs is missing there.
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
libraries | while read -r library; do
  mkdir -p "$root$(dirname "$library")"
  cp "$library" "$root$library"
done
cp "$binary" "$root/tailgraph"
enter=(chroot)
[ "$(id -u)" = 0 ] || enter=(unshare --map-root-user chroot)
if ! "${enter[@]}" / true 2>/dev/null; then
  echo "this user may not change its root folder: the binary was not run in one of its own"
  exit
fi
said=$("${enter[@]}" "$root" /tailgraph generate --model random:tiny --max-new-tokens 4 --quiet --device cpu hello | wc -c)
[ "$said" -gt 0 ] || { echo "$binary: printed nothing in a root folder of its own, expected an answer" >&2; exit 1; }
echo "runs with these files alone: $(libraries | tr '\n' ' ')"
