# What all recipes of this folder begin with, of OUT, TAILGRAPH, MODEL and DTYPE: $here is this folder, $out and $tailgraph are
# there.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

out=${1:-$here/out}
tailgraph=${TAILGRAPH:-$here/../target/release/tailgraph}
command -v "$tailgraph" >/dev/null || {
  echo "$0: found no $tailgraph; build it with 'cargo build --release --features cuda', or set TAILGRAPH" >&2
  exit 1
}
mkdir -p "$out"

# tool_of OPTION...: the program that `profile` finds, the first word of the line that it prints for a shell.
tool_of() {
  local line
  line=$("$tailgraph" profile "$@" --print -- true)
  eval "set -- $line"
  printf '%s\n' "$1"
}

model=${MODEL:-random:lfm2-8b-a1b}
dtype=${DTYPE:-bf16}
