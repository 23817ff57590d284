"""What oracle.py and families.py share: how a comparison with transformers is run, timed and reported."""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

# Relative error of logits in f32.
TOLERANCE = 1e-4


class Clock:
    """Seconds of each part of the run."""

    def __init__(self, program):
        self.program = program
        self.seconds = {}

    def part(self, name, work, *arguments, **named):
        start = time.perf_counter()
        result = work(*arguments, **named)
        self.seconds[name] = round(time.perf_counter() - start, 2)
        print(f"{self.program}: {name}: {self.seconds[name]} s", file=sys.stderr, flush=True)
        return result


def add_options(parser):
    parser.add_argument("--tailgraph", required=True, help="the binary")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--launch", default="device-graph")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--work", help="folder for the checkpoint and the logits")
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    parser.add_argument("--json", help="where the report goes [standard output]")


def run(program, options, compare, parts):
    """compare(options, folder) gives the report, parts(report) what of it is to hold, as [(name, part, summary)]. Returns the
    exit code."""
    own = None if options.work else tempfile.mkdtemp(prefix=f"tailgraph-{program}-")
    try:
        report = compare(options, Path(own or options.work))
    finally:
        if own and not options.keep:
            shutil.rmtree(own)
    text = json.dumps(report, indent=1)
    if options.json:
        Path(options.json).write_text(text + "\n")
    else:
        print(text)
    told = parts(report)
    for name, part, summary in told:
        print(f"{program}: {name}: {'holds' if part['holds'] else 'DISAGREES'}: {summary}", file=sys.stderr)
    return 0 if all(part["holds"] for _, part, _ in told) else 4


def written(options, model, folder, clock, part="synth"):
    """The folder of the checkpoint that `model` names; a random one is written to `folder` where it is not there yet."""
    if not model.startswith("random:"):
        return model
    if not (folder / "config.json").exists():
        command = [options.tailgraph, "synth", "--model", model, "--output", str(folder), "--quiet"]
        clock.part(part, subprocess.run, command, check=True)
    return str(folder)


def run_options(options):
    """Options of a run of tailgraph that say where it runs."""
    return ["--device", "cuda", "--launch", options.launch] if options.device == "cuda" else ["--device", "cpu"]


def about(options):
    """What a report says of the run."""
    return {
        "command": " ".join(sys.argv),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def spread(hits):
    """How the routing spreads over the experts; a random model that sent all to a few would prove little. `hits` are
    Reference's."""
    experts = {layer: of_layer.tolist() for layer, of_layer in hits.items()}
    return {
        "experts": max(len(hits) for hits in experts.values()),
        "hit_by_layer": {layer: sum(hit > 0 for hit in hits) for layer, hits in experts.items()},
        "largest_share_by_layer": {layer: round(max(hits) / sum(hits), 4) for layer, hits in experts.items()},
    }
