#!/usr/bin/env bash
# A new user's first half hour, run and written down: a clean clone, README's quick start, a batch of 100 OpenAI rows that is
# killed in the middle and resumed.
#   profiles/transcript.sh [OUT]                  OUT: a folder, profiles/out where none is given
# The clone is of the commit that is checked out, and is built from nothing. Where there is a GPU, README's second block is
# run too, and the batch runs on it; else random:tiny serves it on the CPU. KILL_AT (30): rows in the journal when the run is
# killed. ROW_TOKENS (200): new tokens of a row. TAILGRAPH: a program that is built already; nothing is built then, and the
# transcript says so.
# Leaves OUT/first-half-hour-cpu-DATE.txt, or -gpu-: each command behind a $, and the seconds since the start. Names of folders
# and of the machine, control characters, and cargo's lines about other crates, are not in it.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${1:-$repository/profiles/out}
kill_at=${KILL_AT:-30}
tokens=${ROW_TOKENS:-200}
mkdir -p "$out"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
device=cpu
nvidia-smi -L >/dev/null 2>&1 && device=gpu
transcript=$out/first-half-hour-$device-$(date +%F).txt
host=$(hostname)
built=${TAILGRAPH:+$(realpath "$TAILGRAPH")}
# The caller's choices are not a new user's.
unset "${!CARGO_@}" "${!TAILGRAPH_@}"

# Shows a command and its output. What it ends with is for the caller.
run() {
  printf '\n[%4d s] $ %s\n' "$SECONDS" "$1"
  eval "$1" 2>&1
}

fail() {
  printf '%s: %s\n' "$0" "$1" >&2
  exit 1
}

# The commands of the fenced block of README that has $1 in it, as they are there.
block() {
  awk -v wanted="$1" '
    /^```sh/ { inside = 1; text = ""; next }
    /^```$/ { if (inside && index(text, wanted)) { printf "%s", text; exit } inside = 0 }
    inside { text = text $0 "\n" }' README.md
}

# What README says right before that block, as comments.
said() {
  awk -v wanted="$1" '
    /^```/ { inside = !inside; if (inside) lines = text; text = ""; next }
    inside && index($0, wanted) { printf "%s", lines; exit }
    { text = $0 == "" ? "" : text "# README: " $0 "\n" }' README.md
}

rows_in() { # FILE
  [ -e "$1" ] && grep -c '"custom_id"' "$1" || true
}

session() {
  cd "$scratch"
  echo "# $(uname -sm), $(nproc) cores, $(awk '/MemTotal/ { printf "%.0f GB", $2 / 1e6 }' /proc/meminfo) of memory, $device; $(date +%F)"
  [ -n "$built" ] || echo "# commit $(git -C "$repository" rev-parse --short HEAD)"
  run "git clone --quiet $(printf %q "$repository") tailgraph && cd tailgraph"
  local quick cuda command
  quick=$(block 'cargo run --release')
  cuda=$(block 'cargo build --release --features cuda')
  [ -n "$quick" ] && [ -n "$cuda" ] || fail "README.md: found no blocks of the quick start"
  said 'cargo run --release'
  if [ -n "$built" ]; then
    echo "# Not built here: the program was there before, and is put where cargo would have put it."
    mkdir -p target/release
    cp "$built" target/release/tailgraph
    run "target/release/tailgraph ${quick#cargo run --release -- }"
  else
    run "$quick"
  fi
  if [ "$device" = gpu ] && [ -z "$built" ]; then
    while IFS= read -r command; do run "${command%%#*}"; done <<<"$cuda"
  fi
  # shellcheck disable=SC2016
  run 'export PATH=$PWD/target/release:$PATH'
  run 'tailgraph --version'
  run 'for i in $(seq 100); do
  echo '\''{"custom_id": "row-'\''$i'\''", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "tiny",
    "messages": [{"role": "user", "content": "Say something about the number '\''$i'\''."}], "max_tokens": '"$tokens"'}}'\'' | tr -d '\''\n'\''; echo
done > batch.jsonl; wc -l < batch.jsonl'
  local generate='tailgraph generate --model random:tiny --input batch.jsonl --output answers.jsonl'

  printf '\n[%4d s] $ %s\n' "$SECONDS" "$generate"
  # Without a shell between: the process is the program itself.
  $generate 2>&1 &
  local process=$! ended=0
  until [ "$(rows_in answers.jsonl.partial || echo 0)" -ge "$kill_at" ] 2>/dev/null; do
    kill -0 "$process" 2>/dev/null || fail "the batch was done before $kill_at rows were seen: set ROW_TOKENS higher"
    sleep 0.05
  done
  printf '[%4d s] # from another terminal: kill -9\n' "$SECONDS"
  kill -9 "$process"
  wait "$process" 2>/dev/null || ended=$?
  [ "$ended" = 137 ] || fail "the batch ended with $ended, expected 137 of a kill"
  echo "# exit code $ended: killed"

  run 'ls'
  # Without --resume nothing is lost either.
  ended=0
  run "$generate" || ended=$?
  echo "# exit code $ended"
  [ "$ended" != 0 ] || fail "a journal was passed over without --resume"
  ended=0
  run "$generate --resume" || ended=$?
  echo "# exit code $ended"
  run 'wc -l answers.jsonl; echo "$(grep -o '\''"custom_id":"row-[0-9]*"'\'' answers.jsonl | sort -u | wc -l) different ids"'
  run 'head -n 1 answers.jsonl; ls answers*  # answers.jsonl.job.json is what --resume compares with'
  [ "$(wc -l <answers.jsonl)" = 100 ] || fail "answers.jsonl: found $(wc -l <answers.jsonl) lines, expected 100"
  printf '\n[%4d s] # done\n' "$SECONDS"
}

# Random weights write control characters too, which a page shows badly.
literally() { printf '%s' "$1" | sed 's/[][\\.*^$|]/\\&/g'; } # as a pattern of sed
session | LC_ALL=C sed -u -e 's/[[:cntrl:]]//g' -e "s|$(literally "$scratch")|~|g" -e "s|$(literally "$(printf %q "$repository")")|REPOSITORY|g" \
  -e "s|$(literally "$repository")|REPOSITORY|g" -e "s|$(literally "$host")|HOST|g" \
  -e '/^ *\(Compiling\|Downloaded\|Downloading\|Updating\|Locking\) /d' | tee "$transcript.partial"
mv "$transcript.partial" "$transcript"
