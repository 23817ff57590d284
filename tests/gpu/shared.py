"""A GPU that another process uses too, for tests/gpu/check.py: device-graph must go on, and serve all rows; and what is recorded in
each way must be what a replay gives.

While the neighbour's kernels of 2 ms run, the clock of a step goes on and the step does not: what gives up by that clock
fails here. One sequence of random:tiny takes some tens of microseconds a step, so launches meet the neighbour at every moment.

Copies of different streams, which else run as soon as they are queued, wait for the neighbour too, and then run in any order that
nothing forbids: a recording that no replay gives was found so (profiles/log/checks.md).
"""

import json
import subprocess
import time
from pathlib import Path

import bounded
import compiled

ROWS_A_RUN, TOKENS_A_ROW = 8, 1500
SERVING = 0.6  # of the time; recordings have the rest
WAYS = ["device-graph"], ["host-graph"], ["host-graph-ahead"]
RECORDED_ROWS, SLOTS = 96, 13


def run(tailgraph, neighbour, work, seconds, deadline):
    """Runs jobs for that many seconds beside a neighbour: (passed, line, details)."""
    neighbour = neighbour or compiled.program("neighbour", work)
    if isinstance(neighbour, str):
        return False, neighbour, {}
    rows = Path(work) / "shared.jsonl"
    row = lambda i: json.dumps({"id": i, "prompt": f"Row {i}", "max_new_tokens": TOKENS_A_ROW, "ignore_eos": True}) + "\n"
    rows.write_text("".join(row(i) for i in range(ROWS_A_RUN)))
    recorded = Path(work) / "recorded.jsonl"
    recorded.write_text("".join(map(recorded_row, range(RECORDED_ROWS))))
    command = [tailgraph, "generate", "--model", "random:tiny", "--device", "cuda", "--launch", "device-graph", "--max-seqs", "1", "-q", "-i", rows]
    alone = job(command, deadline)
    with subprocess.Popen([str(neighbour)], stdout=subprocess.PIPE, text=True) as busy:
        try:
            if busy.stdout.readline().strip() != "busy":
                return False, f"the neighbour does not run, exit code {busy.wait()}", {}
            beside, start = [], time.monotonic()
            lasts = lambda share: time.monotonic() - start < share * seconds and deadline() > 1
            while lasts(SERVING):
                beside.append(job(command, deadline))
            took = time.monotonic() - start
            recordings = []
            while lasts(1) or len(recordings) < len(WAYS):
                recordings.append(recording(tailgraph, WAYS[len(recordings) % len(WAYS)], recorded, deadline))
            still_busy = busy.poll() is None
        finally:
            busy.kill()
    failures = [found["said"] for found in [alone, *beside] if not found["whole"]]
    differing = [found for found in recordings if not found["equal"]]
    tokens = len(beside) * ROWS_A_RUN * TOKENS_A_ROW
    details = {
        "seconds": round(took, 1), "runs": len(beside), "rows": len(beside) * ROWS_A_RUN, "failures": failures[:5],
        "tokens_per_second": round(tokens / took, 1), "tokens_per_second_alone": round(ROWS_A_RUN * TOKENS_A_ROW / alone["seconds"], 1),
        "recordings": len(recordings), "differing": differing[:5],
    }  # fmt: skip
    line = f"{details['rows']} rows in {took:.0f} s, {len(failures)} failed runs, {details['tokens_per_second']:.0f} tokens/s ({details['tokens_per_second_alone']:.0f} alone, loading counted); {len(differing)} of {len(recordings)} recordings differ from their replays"
    return still_busy and bool(beside) and not failures and not differing, line, details


def job(command, deadline):
    """One run of all rows: whether all were served, and what it said."""
    start = time.monotonic()
    ran = bounded.run(command, max(deadline(), 1))
    served = [json.loads(line) for line in ran.stdout.splitlines()]
    whole = ran.returncode == 0 and [len(row.get("output_ids", [])) for row in served] == [TOKENS_A_ROW] * ROWS_A_RUN
    return {"whole": whole, "said": ran.stderr.strip()[-400:], "seconds": time.monotonic() - start}


def recorded_row(i):
    """Prompts and answers of many lengths, greedy and sampled, some with log-probabilities; some run out of time."""
    ids = [8 + (i * 37 + j * 11) % 250 for j in range(1 + i * 29 % 150)]
    row = {"id": i, "input_ids": ids, "max_new_tokens": 1 + i * 13 % 70, "logprobs": i % 3}
    if i % 3 > 0:
        row |= {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.4}
    if i % 8 == 3:
        row |= {"max_new_tokens": 900, "timeout_ms": 25}
    return json.dumps(row) + "\n"


def recording(tailgraph, way, rows, deadline):
    """One run of these rows on record, taken again kernel by kernel: whether the replay gives the same, and what was said."""
    record, answers = rows.with_name("record.jsonl"), rows.with_name("answers.jsonl")
    model = ["--model", "random:tiny", "--device", "cuda", "--record", record]
    job = ["--max-seqs", SLOTS, "--input", rows, "--output", answers, "--overwrite", "-q"]
    ran = bounded.run([tailgraph, "generate", *model, "--launch", *way, *job], max(deadline(), 1))
    equal = ran.returncode in (0, 3)  # rows that ran out of time have failed
    if equal:
        ran = bounded.run([tailgraph, "replay", *model, "--launch", "host-kernels"], max(deadline(), 1))
        equal = ran.returncode == 0 and ran.stdout.endswith("equal\n")
    return {"way": " ".join(way), "equal": equal, "said": (ran.stdout + ran.stderr).strip()[-400:]}
