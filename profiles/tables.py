#!/usr/bin/env python3
"""Fills the tables of README.md and profiles/README.md from the files in profiles/results/.

profiles/tables.py            writes each table between its `<!-- table: NAME -->` and the next `<!-- end -->`
profiles/tables.py --check    fails, with the difference, where a document says something else than the files
"""

import difflib
import json
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAUNCH_WAYS = ["host-kernels", "host-graph", "host-graph-ahead", "device-graph"]

# The file of each measurement. A new one takes the old one's place here.
DECODE = "decode-h200-2026-11-29.json"
WAYS = "ways-h200-2026-11-29.jsonl"
PROMPTS = {"H200": "prompts-h200-2026-11-28.jsonl", "H100": "prompts-h100-2026-11-27.jsonl"}
PEERS = "peers-h200-2026-11-29.json"
# The commits of files whose rows have no `build_commit`.
COMMITS = {
    PROMPTS["H200"]: "d0a3b421",
    PROMPTS["H100"]: "3c5a0f3 and 4c77325",
}


def rows(file, **wanted):
    text = (ROOT / "profiles/results" / file).read_text()
    found = json.loads(text) if file.endswith(".json") else map(json.loads, text.splitlines())
    return [row for row in found if all(row.get(name) == value for name, value in wanted.items())]


def row(file, **wanted):
    """The first that has these values."""
    found = rows(file, **wanted)
    return found[0] if found else sys.exit(f"profiles/results/{file}: found no row of {wanted}")


def figure(value, digits=4):
    """With so many digits, but all of those before the point."""
    return f"{value:,.{max(digits - len(str(int(value))), 0)}f}"


def rate(a_second):
    return f"{a_second:,.0f}"


def source(file):
    """GPU, commit and date, as the rows have them, and the file."""

    def all_of(values):
        return " and ".join(sorted(set(values)))

    found = rows(file)
    gpu = all_of(re.search(r"NVIDIA [^(]*\w", row["gpu_info"])[0] for row in found)
    commit = all_of(row["build_commit"][:8] + row["build_commit"][12:] for row in found if row.get("build_commit")) or COMMITS[file]
    return f"{gpu}, commit {commit}, {all_of(row['test_time'][:10] for row in found)} ([results](results/{file}))"


def caption(text):
    return textwrap.fill(text, 150, break_long_words=False, break_on_hyphens=False) + "\n\n"


def table(head, lines):
    align = ["---:" if head[0] else "---"] + ["---:"] * (len(head) - 1)
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, align, *lines])


def batches(file):
    return sorted({row["batch"] for row in rows(file, kind="decode")})


def beside_vllm():
    engines = ["tailgraph", "vLLM 0.26"]

    def line(name, field, **asked):
        of_lengths = [[row(PEERS, engine=engine, **asked, **of)[field] for engine in engines] for of in name[1]]
        times = [max(own / theirs, theirs / own) for own, theirs in of_lengths]
        cells = [" / ".join(f"{values[at]:,g}" for values in of_lengths) for at in (0, 1)]
        return [name[0], f"**{cells[0]}**", cells[1], " / ".join(f"{ratio:.2g}" for ratio in times)]

    lengths = [[{"n_prompt": length} for length in some] for some in ((32, 128, 512), (2048, 8192, 32000))]
    steps = [{"batch": batch} for batch in (1, 32, 128)]
    lines = [
        line(("time to the first token of a prompt of 32 / 128 / 512, ms", lengths[0]), "mean_ttft_ms", kind="prefill"),
        line(("... of 2,048 / 8,192 / 32,000", lengths[1]), "mean_ttft_ms", kind="prefill"),
        line(("1,024 prompts of 32 tokens, one new token each, prompts/s", [{}]), "mean_samples_s", kind="score"),
        line(("a decode step of 1 / 32 / 128 sequences, ms", steps), "mean_step_ms", kind="decode"),
    ]
    what = "LFM2-8B-A1B's shapes in bf16, side by side on one machine, means"
    return caption(f"{what}; {source(PEERS)}:") + table(["", *engines, "times"], lines)


def ways_in_short():
    lines = []
    for batch in (1, 32, 256):
        found = [[row(WAYS, launch=way, batch=batch, cpu_load=load) for load in (0, 32)] for way in LAUNCH_WAYS]
        p99 = [[figure(row["p99_step_ms"]) for row in both] for both in found]
        p50 = [figure(idle["median_step_ms"]) for idle, _ in found]
        rates = [[rate(row["median_ts"]) for row in both] for both in found]
        steps = [f"{p50} ({idle} → {busy})" for p50, (idle, busy) in zip(p50, p99)]
        lines.append([f"{batch}: ms", figure(found[0][0]["floor_ms"]), *steps])
        lines.append([f"{batch}: tokens/s", "", *map(" → ".join, rates)])
    what = "ms: p50 (p99 with an idle host → p99 beside 32 threads that spin on 16 cores), and tokens/s, idle → busy"
    return caption(f"{what}; {source(WAYS)}:") + table(["sequences", "floor", *LAUNCH_WAYS], lines)


def decode():
    lines = []
    for batch in batches(DECODE):
        own, host = (row(DECODE, kind="decode", launch=way, batch=batch) for way in ("device-graph", "host-graph"))
        times = [own["floor_ms"], own["median_step_ms"], own["p99_step_ms"]]
        of_floor = f"{own['median_step_ms'] / own['floor_ms']:.2f}"
        beside = [figure(host["median_step_ms"]), figure(host["p99_step_ms"]), rate(host["median_ts"])]
        lines.append([str(batch), *map(figure, times), rate(own["median_ts"]), of_floor, *beside])
    head = ["sequences", "floor", "device-graph p50", "p99", "tokens/s", "of the floor", "host-graph p50", "p99", "tokens/s"]
    return caption(f"{source(DECODE)}:") + table(head, lines)


def prompts():
    def cell(show, field, file, **wanted):
        """Not every file has every row."""
        found = rows(file, **wanted)
        return show(found[0][field]) if found else ""

    lengths, first = (32, 128, 512, 2048, 8192, 32000, 100000), []
    for gpu, file in PROMPTS.items():
        for name, model, field in (
            (gpu, "lfm2-8b-a1b", "median_ttft_ms"),
            ("floor", "lfm2-8b-a1b", "floor_ms"),
            (f"{gpu}, lfm2.5-8b-a1b", "lfm2.5-8b-a1b", "median_ttft_ms"),
            (f"{gpu}, lfm2-24b-a2b", "lfm2-24b-a2b", "median_ttft_ms"),
        ):
            asked = {"kind": "prefill", "model_filename": f"random:{model}@0"}
            cells = [cell(lambda ms: figure(ms, 3), field, file, n_prompt=length, **asked) for length in lengths]
            first.append([name, *cells])
    rates = []
    for name, tokens, asked in (
        ("1,024 prompts of 32, samples/s: last position, bf16", 32, {"kind": "score", "dtype": "bf16", "logits_on_device": False}),
        ("all positions, kept on the GPU, bf16", 32, {"kind": "score", "dtype": "bf16", "logits_on_device": True}),
        ("last position, f32", 32, {"kind": "score", "dtype": "f32", "logits_on_device": False}),
        ("1,024 in, 1,024 out, 100 at a time, new tokens/s", 1, {"kind": "serve", "n_prompt": 1024}),
        ("8,192 in, 2,048 out, 32 at a time, new tokens/s", 1, {"kind": "serve", "n_prompt": 8192}),
    ):
        cells = [cell(lambda value: rate(value / tokens), "median_ts", file, **asked) for file in PROMPTS.values()]
        rates.append([name, *cells])
    head = ["first token, ms", *(f"{length:,}" for length in lengths)]
    return caption(f"{'; '.join(map(source, PROMPTS.values()))}:") + table(["", *PROMPTS], rates) + "\n" + table(head, first)


def ways():
    lines = []
    for batch in batches(WAYS):
        p99 = [[row(WAYS, launch=way, batch=batch, cpu_load=load)["p99_step_ms"] for load in (0, 32)] for way in LAUNCH_WAYS]
        bare = row(WAYS, launch="bare", batch=batch)["median_step_ms"]
        lines.append([str(batch), figure(bare), *(f"{figure(idle)} → {figure(busy)}" for idle, busy in p99)])
    what = "p99 in ms with an idle host → beside 32 threads that spin on 16 cores"
    return caption(f"{what}; {source(WAYS)}:") + table(["sequences", "bare p50", *LAUNCH_WAYS], lines)


DOCUMENTS = {
    "README.md": {"peers": beside_vllm, "launch ways": ways_in_short},
    "profiles/README.md": {"decode": decode, "prompts": prompts, "ways": ways},
}


def filled(name, text):
    tables, place = DOCUMENTS[name], re.compile(r"(<!-- table: (.*) -->\n)(?s:.*?)(<!-- end -->)")
    found = [place[2] for place in place.finditer(text)]
    if found != list(tables):
        sys.exit(f"{name}: found the tables {found}, expected {list(tables)}")
    # Links are written as from profiles/.
    folder = "](results/" if "/" in name else "](profiles/results/"
    return place.sub(lambda place: place[1] + tables[place[2]]().replace("](results/", folder) + place[3], text)


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__.strip())
    differ = False
    for name in DOCUMENTS:
        old = (ROOT / name).read_text()
        new = filled(name, old)
        if not sys.argv[1:]:
            (ROOT / name).write_text(new)
        elif new != old:
            differ = True
            both = [text.splitlines(keepends=True) for text in (old, new)]
            sys.stdout.writelines(difflib.unified_diff(*both, name, f"{name} by profiles/tables.py"))
    if differ:
        sys.exit("run profiles/tables.py, and commit what it writes")
