#!/usr/bin/env python3
"""Everything that is to be shown on a machine with one NVIDIA GPU, in one command; prints a table and writes one JSON.

    tests/gpu/check.py --json profiles/results/check-$(date +%F).json     # builds with cargo first
    tests/gpu/check.py --binaries FOLDER --commit HASH --json FILE         # where there is no Rust

FOLDER holds what `cargo test --release --features lab --no-run` and `cargo build --release --features lab --examples`
make, under the names tailgraph, gpu, gpu_engine, gpu_soak, soak and (the test) lab, and perhaps sanitizer_faults and neighbour
(else nvcc compiles them). The tests read fixtures from the folder of the repository that they were built in.

Parts, each with a time limit in seconds (--limit PART=SECONDS; --only and --skip choose among them):
    tests      900   tests/gpu: every kernel, goldens, whole models in the three ways to launch
    engine     300   tests/gpu_engine: the rings and the scheduler around steps without a model, and all that is timed
    lab        300   tests/lab: every way of launching and of handing on gives equal bits; limits
    small      300   tests/gpu_soak: the soak on the random tiny model
    soak      1800   profiles/soak.rs at full size, --soak-seconds of it under load (420)
    bits       120   the soak's --bits on the random tiny model for 25 s: what the GPU scheduled and computed, replayed to the same bits
    bits-full  120   ... at full size for 25 s
    oracle     900   tests/gpu/oracle.py: full size against transformers; also where soak's requests differ from alone
    families   600   tests/gpu/families.py: every kernel that serves 8B's and 24B's shapes, of six layers, against transformers
    sanitizer  900   tests/gpu/sanitizer.py: four tools, three ways to launch
    shared     420   tests/gpu/shared.py: a GPU that another process keeps busy, for --shared-seconds (300)
    speed      300   `tailgraph bench decode` at full size, the bare graph and both ways to launch graphs, host idle and busy

The JSON:
    schema      1
    command, date (UTC), commit, gpu, driver, gpu_memory_mib, host, host_cores, model
    parts       {PART: {status, seconds, limit_s, line, report}}
                status is passed, failed, timed out or skipped; line is what the table says; report is the part's own:
                tests, engine, lab, small
                                       {passed, failed, ignored, failures: [NAME]}
                soak, bits, bits-full, oracle, families, speed
                                       what the program prints (its source says what that is; speed: bench's results)
                shared                 {seconds, runs, rows, failures, tokens_per_second, tokens_per_second_alone, recordings, differing}
                sanitizer              {sanitizer, verdicts, limits_of_the_tool, wrong, printed}
Exit code 0 where every part that ran passed, 1 otherwise.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bounded
import sanitizer
import shared

HERE = Path(__file__).resolve().parent
LIMITS_S = {"tests": 900, "engine": 300, "lab": 300, "small": 300, "soak": 1800, "bits": 120, "bits-full": 120, "oracle": 900,
            "families": 600, "sanitizer": 900, "shared": 420, "speed": 300}  # fmt: skip
# By program, and how many at a time: those of gpu_engine time what they do.
TESTS = {"tests": ("gpu", 4), "engine": ("gpu_engine", 1), "lab": ("lab", 1), "small": ("gpu_soak", 1)}


def main():
    options = arguments()
    binaries = Binaries(options.binaries) if options.binaries else build()
    gpu, driver, memory = ask_gpu()
    report = {
        "schema": 1,
        "command": " ".join(sys.argv),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": options.commit or commit(),
        "gpu": gpu,
        "driver": driver,
        "gpu_memory_mib": memory,
        "host": platform.platform(),
        "host_cores": os.cpu_count(),
        "model": options.model,
        "parts": {},
    }
    with tempfile.TemporaryDirectory(prefix="tailgraph-check-", dir=options.work) as work:
        for part, limit in options.limits.items():
            if part not in options.parts:
                report["parts"][part] = {"status": "skipped"}
                continue
            print(f"check: {part} ...", file=sys.stderr, flush=True)
            start = time.monotonic()
            status, line, details = take(part, options, binaries, Path(work), limit)
            seconds = round(time.monotonic() - start, 1)
            found = {"status": status, "seconds": seconds, "limit_s": limit, "line": line, "report": details}
            report["parts"][part] = found
            # After each part, so that whatever ends this program leaves what was found.
            if options.json:
                Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    print(f"{gpu}, driver {driver}, commit {report['commit']}")
    for part, found in report["parts"].items():
        print(f"{part:10} {found['status']:10} {found.get('seconds', 0):7.1f} s  {found.get('line', '')}")
    return int(any(found["status"] not in ("passed", "skipped") for found in report["parts"].values()))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=Path, help="folder of built programs [default: build with cargo]")
    parser.add_argument("--commit", help="of the binaries [default: git's]")
    parser.add_argument("--json", type=Path, help="where the report goes")
    parser.add_argument("--only", default=",".join(LIMITS_S), help="parts, with commas")
    parser.add_argument("--skip", default="", help="parts, with commas")
    parser.add_argument("--limit", action="append", default=[], metavar="PART=SECONDS")
    parser.add_argument("--model", default="random:lfm2-8b-a1b", help="of soak, bits-full, oracle and speed")
    parser.add_argument("--soak-seconds", type=int, default=420)
    parser.add_argument("--shared-seconds", type=int, default=300)
    parser.add_argument("--work", help="folder for large temporary files")
    options = parser.parse_args()
    options.limits = dict(LIMITS_S)
    for limit in options.limit:
        part, _, seconds = limit.partition("=")
        if part not in LIMITS_S or not seconds.isdigit():
            parser.error(f"--limit {limit}: expected PART=SECONDS with a part of {', '.join(LIMITS_S)}")
        options.limits[part] = int(seconds)
    only, skip = ({part for part in text.split(",") if part} for text in (options.only, options.skip))
    if unknown := (only | skip) - LIMITS_S.keys():
        parser.error(f"{', '.join(unknown)}: expected parts of {', '.join(LIMITS_S)}")
    options.parts = only - skip
    return options


class Binaries(dict):
    """Programs by name, in one folder."""

    def __init__(self, folder):
        super().__init__({path.name: path.resolve() for path in folder.iterdir() if path.is_file()})

    def __missing__(self, name):
        raise Unusable(f"found no {name} among the binaries")


class Unusable(Exception):
    """A part that cannot start, and why."""


def build():
    """Builds what the parts run; each program by its name."""
    found = Binaries.__new__(Binaries)
    for command in (["test", "--no-run"], ["build", "--bins", "--examples"]):
        command = ["cargo", *command, "--release", "--features", "lab", "--message-format=json-render-diagnostics"]
        built = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=HERE.parent.parent, check=True)
        for message in map(json.loads, built.stdout.splitlines()):
            if not message.get("executable"):
                continue
            name, kind = message["target"]["name"], message["target"]["kind"]
            # The example lab has the name of its test, which is what runs here.
            if message["profile"]["test"] == ("test" in kind) and (name, kind) != ("lab", ["example"]):
                found[name] = Path(message["executable"])
    return found


def commit():
    found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=HERE)
    return found.stdout.strip() or "unknown"


def ask_gpu():
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits", "--id=0"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"check: nvidia-smi finds no GPU here: {error}")
    name, driver, memory = found.strip().split(", ")
    return name, driver, int(memory)


def take(part, options, binaries, work, limit):
    """Runs a part: (status, line, report)."""
    start = time.monotonic()
    left = lambda: limit - (time.monotonic() - start)
    try:
        if part in TESTS:
            program, threads = TESTS[part]
            return run_tests(binaries[program], threads, binaries["tailgraph"], limit)
        if part == "sanitizer":
            passed, line, details = sanitizer.run(binaries["tailgraph"], binaries.get("sanitizer_faults"), work, left)
            return ("passed" if passed else "failed"), line, details
        if part == "shared":
            passed, line, details = shared.run(binaries["tailgraph"], binaries.get("neighbour"), work, options.shared_seconds, left)
            return ("passed" if passed else "failed"), line, details
        return run_program(part, options, binaries, work, limit)
    except subprocess.TimeoutExpired as ended:
        return "timed out", f"after {limit} s", {"printed": tail(ended.stdout) + tail(ended.stderr)}
    except Unusable as why:
        return "failed", str(why), {}


def tail(printed):
    """The last lines of what a program printed."""
    return [line for line in (printed or "").splitlines() if line.strip()][-20:]


def run_tests(binary, threads, tailgraph, limit):
    # NCCL does without multicast, as the command line has it.
    environment = dict(os.environ, TAILGRAPH_BINARY=str(tailgraph), NCCL_NVLS_ENABLE="0")
    ran = bounded.run([binary, "--include-ignored", f"--test-threads={threads}"], limit, env=environment)
    # The last is the program's own: a test may run the program again, for a test that is to fail.
    counts = re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", ran.stdout, re.M)[-1:]
    if not counts:
        return "failed", f"exit code {ran.returncode}, no test result", {"printed": tail(ran.stdout) + tail(ran.stderr)}
    passed, failed, ignored = map(int, counts[0])
    failures = sorted(set(re.findall(r"^test (\S+) \.\.\. FAILED", ran.stdout, re.M))) if failed else []
    details = {"passed": passed, "failed": failed, "ignored": ignored, "failures": failures}
    if failures:
        # Where a test panicked, and what it says, which begins on the next line.
        lines = ran.stdout.splitlines()
        said = [i for i, line in enumerate(lines) if "panicked" in line]
        details["printed"] = [line[:400] for i in said for line in lines[i : i + 3]][:20]
    good = ran.returncode == 0 and passed > 0 and failed == 0
    return ("passed" if good else "failed"), f"{passed} passed, {failed} failed {' '.join(failures)}".strip(), details


def run_program(part, options, binaries, work, limit):
    output, soaked = work / f"{part}.json", work / "soaked.json"
    command = {
        "oracle": lambda: [sys.executable, HERE / "oracle.py", "--tailgraph", binaries["tailgraph"], "--model", options.model,
                           "--work", work, "--json", output, *(["--soak", soaked] if soaked.exists() else [])],
        "families": lambda: [sys.executable, HERE / "families.py", "--tailgraph", binaries["tailgraph"], "--work", work, "--json", output],
        "soak": lambda: [binaries["soak"], options.model, str(options.soak_seconds)],
        "bits": lambda: [binaries["soak"], "--bits", "random:tiny", "25", "0", "2"],
        # The first rounds have 130, 258 and 1,024 slots.
        "bits-full": lambda: [binaries["soak"], "--bits", options.model, "25", "3", "2"],
        "speed": lambda: [binaries["tailgraph"], "bench", "decode", "--model", options.model, "--device", "cuda", "--dtype", "bf16",
                          "--launch", "bare,host-graph,device-graph", "--batch", "1,32,256",
                          "--gen-len", "96", "--cpu-load", f"0,{2 * (os.cpu_count() or 1)}", "--repeats", "1", "-q", "--format", "json"],
    }[part]()  # fmt: skip
    ran = bounded.run(command, limit)
    text = output.read_text() if output.exists() else ran.stdout
    try:
        details = json.loads(text)
    except json.JSONDecodeError:
        return "failed", f"exit code {ran.returncode}: {' '.join(tail(ran.stderr)[-1:])}", {"printed": tail(ran.stderr)}
    if part == "soak":
        soaked.write_text(text)
    lines = {"oracle": oracle_line, "families": families_line, "soak": soak_line, "bits": bits_line, "bits-full": bits_line, "speed": speed_line}
    return ("failed" if ran.returncode else "passed"), lines[part](details), details


def oracle_line(report):
    f32, bf16 = report["f32"], report["bf16"]["mean_logprob_difference_to_transformers_f32"]
    error = f32["relative_error"]
    return (
        f"f32 top-1 {f32['top1_agree']}/{f32['prompts']}, relative error {error['pooled']:.1e}; with {len(f32['routing_ties'])} routing ties"
        f" decided alike {f32['top1_agree_routing_ties_decided_alike']}, {error['pooled_routing_ties_decided_alike']:.1e};"
        f" bf16 {bf16['tailgraph']['next_token']:.2e}, transformers {bf16['transformers']['next_token']:.2e}"
    )


def families_line(report):
    said = []
    for model in report["models"].values():
        f32, bf16 = model["f32"], model["bf16"]
        error, means = f32["relative_error"], bf16["mean_logprob_difference_to_transformers_f32"]
        said.append(
            f"{model['name']}: f32 {len(f32['calls']['kernels'])} kernels, {f32['wrong']['tokens']} of {f32['tokens']} tokens wrong,"
            f" largest error {error['largest_routing_ties_decided_alike'] or 0:.1e}; bf16 {len(bf16['calls']['kernels'])} kernels,"
            f" {means['tailgraph']:.2e}, transformers {means['transformers']:.2e}"
        )
    return "; ".join(said)


def soak_line(report):
    alone, lasting = report["alone"], report["lasting"]
    return (
        f"{report['in_company']['ended']['requests']} ended as asked, {alone['equal']}/{alone['requests']} equal alone"
        f" ({len(alone['ties'])} ties, {len(alone['wrong'])} wrong, {len(alone['jumps'])} with a routing tie),"
        f" {'equal' if report['replayed']['difference'] is None else 'NOT equal'} replayed, {lasting['ended']['requests']} in {lasting['seconds']:.0f} s,"
        f" RSS {lasting['memory']['resident_growth_bytes']:+} bytes"
    )


def bits_line(report):
    load = report["load"]
    return (
        f"{report['steps']} steps of {len(report['rounds'])} rounds, first difference: {report['difference']}; {load['ended']['tokens']} tokens,"
        f" {load['ended']['cancelled']} cancelled, {load['ended']['timeout']} timeouts, {load['grown']} grown, {load['read_again']} set back"
    )


def speed_line(report):
    rows = [row for row in report if row["launch"] == "device-graph" and row["cpu_load"] == 0]
    return "device-graph p50 " + ", ".join(f"{row['batch']}: {row['median_step_ms']:.2f} ms" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
