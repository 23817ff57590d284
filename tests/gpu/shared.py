"""A GPU that another process uses too, for tests/gpu/check.py: device-graph must go on, and serve all rows.

While the neighbour's kernels of 2 ms run, the clock of a step goes on and the step does not: what gives up by that clock
fails here. One sequence of random:tiny takes some tens of microseconds a step, so launches meet the neighbour at every moment.
"""

import json
import subprocess
import time
from pathlib import Path

import bounded
import compiled

ROWS_A_RUN, TOKENS_A_ROW = 8, 1500


def run(tailgraph, neighbour, work, seconds, deadline):
    """Runs jobs for that many seconds beside a neighbour: (passed, line, details)."""
    neighbour = neighbour or compiled.program("neighbour", work)
    if isinstance(neighbour, str):
        return False, neighbour, {}
    rows = Path(work) / "shared.jsonl"
    row = lambda i: json.dumps({"id": i, "prompt": f"Row {i}", "max_new_tokens": TOKENS_A_ROW, "ignore_eos": True}) + "\n"
    rows.write_text("".join(row(i) for i in range(ROWS_A_RUN)))
    command = [tailgraph, "generate", "--model", "random:tiny", "--device", "cuda", "--launch", "device-graph", "--max-seqs", "1", "-q", "-i", rows]
    alone = job(command, deadline)
    with subprocess.Popen([str(neighbour)], stdout=subprocess.PIPE, text=True) as busy:
        try:
            if busy.stdout.readline().strip() != "busy":
                return False, f"the neighbour does not run, exit code {busy.wait()}", {}
            beside, start = [], time.monotonic()
            while time.monotonic() - start < seconds and deadline() > 1:
                beside.append(job(command, deadline))
            took = time.monotonic() - start
            still_busy = busy.poll() is None
        finally:
            busy.kill()
    failures = [found["said"] for found in [alone, *beside] if not found["whole"]]
    tokens = len(beside) * ROWS_A_RUN * TOKENS_A_ROW
    details = {
        "seconds": round(took, 1), "runs": len(beside), "rows": len(beside) * ROWS_A_RUN, "failures": failures[:5],
        "tokens_per_second": round(tokens / took, 1), "tokens_per_second_alone": round(ROWS_A_RUN * TOKENS_A_ROW / alone["seconds"], 1),
    }  # fmt: skip
    line = f"{details['rows']} rows in {took:.0f} s, {len(failures)} failed runs, {details['tokens_per_second']:.0f} tokens/s ({details['tokens_per_second_alone']:.0f} alone, loading counted)"
    return still_busy and bool(beside) and not failures, line, details


def job(command, deadline):
    """One run of all rows: whether all were served, and what it said."""
    start = time.monotonic()
    ran = bounded.run(command, max(deadline(), 1))
    served = [json.loads(line) for line in ran.stdout.splitlines()]
    whole = ran.returncode == 0 and [len(row.get("output_ids", [])) for row in served] == [TOKENS_A_ROW] * ROWS_A_RUN
    return {"whole": whole, "said": ran.stderr.strip()[-400:], "seconds": time.monotonic() - start}
