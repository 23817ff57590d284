#!/usr/bin/env python3
"""Shards of a job as Ray tasks, then one file of them.

    ray_shards.py --shards 8 --model MODEL --input rows.jsonl --output answers.jsonl [-- OPTION OF generate ...]

INPUT and OUTPUT lie on a file system that all nodes share. A task whose worker or node is lost runs again elsewhere and goes
on from its shard's journal. Ray has no file of its own here: what is done is what the shards' records say.
"""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import ray

USAGE = 2
ROWS_FAILED = 3


def shard_path(output: Path, shard: int) -> Path:
    return output.with_name(f"{output.stem}.{shard}{output.suffix}")


def end_with_worker():
    """In the child: where the worker is killed, it is too: its journal is to be free for the task that runs elsewhere."""
    import ctypes

    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@ray.remote
def run(command: list[str]) -> int:
    # Its own output goes to the worker's, which Ray shows.
    code = subprocess.run(command, preexec_fn=end_with_worker).returncode
    if code not in (0, ROWS_FAILED, USAGE):  # what was asked for wrongly is no better elsewhere
        raise RuntimeError(f"exit code {code} of {' '.join(command)}")
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, required=True, help="how many tasks")
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cpus", type=float, default=1, help="of a task")
    parser.add_argument("--gpus", type=float, default=0, help="of a task")
    parser.add_argument("--retries", type=int, default=3, help="of a task whose worker, GPU or node is lost")
    parser.add_argument("--address", help="of a Ray cluster; otherwise one is started here")
    parser.add_argument("options", nargs="*", help="more options of generate, behind --")
    args = parser.parse_args()

    tailgraph = os.environ.get("TAILGRAPH", "tailgraph")
    output = args.output.resolve()
    files = [shard_path(output, shard) for shard in range(args.shards)]
    ray.init(address=args.address, log_to_driver=True)
    task = run.options(
        num_cpus=args.cpus,
        num_gpus=args.gpus,
        max_retries=args.retries,
        retry_exceptions=True,
    )
    tasks = [
        task.remote(
            [tailgraph, "generate", "--resume", "--model", args.model]
            + ["--input", str(args.input.resolve()), "--output", str(file)]
            + ["--shard", f"{shard}/{args.shards}", *args.options]
        )
        for shard, file in enumerate(files)
    ]
    if USAGE in ray.get(tasks):
        return USAGE
    merge = [tailgraph, "merge", *map(str, files), "--overwrite", "--output", str(output)]
    return subprocess.run(merge).returncode


if __name__ == "__main__":
    sys.exit(main())
