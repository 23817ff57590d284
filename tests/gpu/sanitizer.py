"""compute-sanitizer over the kernels, for tests/gpu/check.py: every tool, every way to launch, on the random tiny model;
and first, over deliberate faults in kernels that run from graphs (sanitizer_faults.cu), so that "clean" means that the
tool looks where our kernels run."""

import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bounded
import compiled

TOOLS = ["memcheck", "racecheck", "initcheck", "synccheck"]
# How sanitizer_faults launches, in the order from least to most of what device-graph does.
WAYS = ["host", "kept", "forget", "tail", "again", "table", "sibling", "overlap", "self", "poll"]
FROM_HOST = ["host", "kept"]
LAUNCHES = ["host-kernels", "host-graph", "device-graph"]
PROMPTS = ["hello", "a prompt of several chunks, so that a step holds whole chunks of it beside the other's new tokens. " * 2]
# What is run of tailgraph, by name.
PROGRAMS = {
    "sampling": ["generate", "--raw", "--max-new-tokens", "4", "--temperature", "0.8", "--top-p", "0.9", "--logprobs", "2", *PROMPTS],
    "f32": ["generate", "--raw", "--max-new-tokens", "4", "--dtype", "f32", *PROMPTS],
    "score": ["score", "--logprobs", "--input", "prompts.jsonl"],
    # Steps of more rows than any that decode has: the kernels of many rows, and attention of prompts over several tiles.
    "many": ["score", "--logprobs", "--input", "many.jsonl"],
    "many-f32": ["score", "--logprobs", "--dtype", "f32", "--input", "many.jsonl"],
    "many-8-bits": ["score", "--logprobs", "--weights", "fp8", "--activations", "fp8", "--input", "many.jsonl"],
    # The most new tokens with which racecheck was seen to live under device-graph, and the fewest with which it died when
    # decode steps' graphs launched themselves (from the third on).
    "two": ["generate", "--raw", "--max-new-tokens", "2", "hello"],
    "three": ["generate", "--raw", "--max-new-tokens", "3", "hello"],
}
# What must be clean with nothing left out, so that every tool has looked at every kernel, the dispatcher too.
WHOLE = ["score", "two"]
# racecheck 2025.3 dies of signal 11 where it watches the dispatcher for more than a few steps. A run in which a tool dies
# is run again with the dispatcher left out; the program "three" is the smallest such run.
WITHOUT_DISPATCHER = ["--kernel-name-exclude", "kns=tg_dispatch"]
# Where it dies all the same, it is run once more with no kernel to look at: a tool that dies then too dies of itself.
ENDED_ILL = ("crashed", "failed")
WITHOUT_KERNELS = ["--kernel-name", "kns=no_kernel_has_this_name"]
FOUND = 9
# racecheck 2025.3 takes a bulk copy for a write by the thread that asks for it, and does not follow the barrier in shared
# memory that counts its bytes; so it finds races in any ring that is filled by such copies. Where it finds them in
# sanitizer_faults' ring, which is in order, those of our ring's copies say nothing: what else it finds, does.
RING = "ring"
# In order too: whether racecheck follows barriers that some warps only arrive at. Where it does not, the races that it finds
# in what is handed over at one say nothing: gate/up's consumers tell its producer what was chosen.
ARRIVE = "arrive"
# It also takes two launches of a kernel that run at once for one, and finds races of a thread with itself: so it does of
# dispatchers, each of which still ends while the next one already stands ready. Where it finds them in sanitizer_faults'
# kernels that run beside each other, what it finds with the dispatcher is left out, and what it finds without it is not.
BESIDE = "beside"
COPIES = Path(__file__).resolve().parent.parent.parent / "kernels" / "skinny/pipeline.cuh"
CHOICE = COPIES.with_name("choice.cuh")
CHOICE_TOLD = ("choice.chosen[warp * WORDS + i] = chosen[i]", "those | bits_at<WORDS>(chosen, r)")
BITS = COPIES.parent.parent / "common/bits.cuh"
BITS_TOLD = ("if constexpr (WORDS == 1) return words[r];",)
# The grouped experts' consumers tell their loaders in the same way in which order the rows are.
SORT = COPIES.parent.parent / "grouped/scheduler.cuh"
SORT_TOLD = ("row_and_which[at] = (n * TG_GROUPED_SORTERS + threadIdx.x)", "row_at(uint32_t place) const")
STAGE_READ = "units[u] = line < k_here ? *reinterpret_cast<const uint4 *>(at)"
AT_ONCE = max((os.cpu_count() or 1) - 2, 2)
# In one run of some sixty racecheck's reports named no files (pieces of mangled names in their place), and in others of the
# same program they did. Such a run is made again, so many times in all.
READINGS = 3

# One program under one tool may take so long. They take a few seconds each; one that hangs must not take the others' time.
LIMIT_S = 120


def run(tailgraph, faults, work, deadline):
    """Returns (passed, one line, details). `faults` is sanitizer_faults, or None: it is compiled here."""
    sanitizer = shutil.which("compute-sanitizer") or compiled.existing("/usr/local/cuda/bin/compute-sanitizer")
    if not sanitizer:
        return False, "found no compute-sanitizer: install the CUDA toolkit, or add its bin folder to PATH", {}
    if not faults:
        faults = compiled.program("sanitizer_faults", work, "-rdc=true", "-lineinfo")
        if isinstance(faults, str):
            return False, faults, {}
    jobs = {}
    for tool in TOOLS:
        for way in WAYS:
            for fault in ("none", tool):
                # A fault is reported in every turn, and reports are slow.
                jobs[tool, fault, way] = [faults, fault, way, "100" if fault == "none" else "2"]
        for launch in LAUNCHES:
            for program, (command, *more) in PROGRAMS.items():
                place = ["--model", "random:tiny", "--device", "cuda", "--launch", launch, "--quiet"]
                jobs[tool, program, launch] = [tailgraph, command, *place, *more]
    jobs["racecheck", RING, "host"] = [faults, RING, "host"]
    jobs["racecheck", ARRIVE, "host"] = [faults, ARRIVE, "host"]
    jobs["racecheck", "none", BESIDE] = [faults, "none", BESIDE, "2"]
    rows = [json.dumps({"input_ids": [8 + i * 7 % 200 for i in range(tokens)]}) + "\n" for tokens in (1, 3, 40, 150)]
    (Path(work) / "prompts.jsonl").write_text("".join(rows))
    rows = [json.dumps({"input_ids": [8 + i * 7 % 200 for i in range(tokens)]}) + "\n" for tokens in (150, 33, 400)]
    (Path(work) / "many.jsonl").write_text("".join(rows))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        look_at = lambda job: look(sanitizer, job[0][0], job[1], work, deadline)
        verdicts = dict(zip(jobs, pool.map(look_at, jobs.items())))
        misled = any(verdicts["racecheck", *job]["says"] == "found" for job in (("none", BESIDE), (ARRIVE, "host")))
        # A program that fails under a tool that found nothing is looked at again too: the tool may have slowed a step, or broken it.
        lost = lambda job, says: says in ENDED_ILL or misled and job[0] == "racecheck" and says == "found"
        died = {job: command for job, command in jobs.items() if job[2] == "device-graph" and lost(job, verdicts[job]["says"])}
        look_again = lambda job: look(sanitizer, job[0][0], job[1], work, deadline, WITHOUT_DISPATCHER)
        for job, verdict in zip(died, pool.map(look_again, died.items())):
            verdicts[job]["without_dispatcher"] = verdict
            verdicts[job]["printed"] += verdict["printed"]
        dead = {job: command for job, command in died.items() if verdicts[job]["without_dispatcher"]["says"] in ENDED_ILL}
        look_at_none = lambda job: look(sanitizer, job[0][0], job[1], work, deadline, WITHOUT_KERNELS)
        for job, verdict in zip(dead, pool.map(look_at_none, dead.items())):
            verdicts[job]["without_kernels"] = verdict["says"]
    return judge(verdicts, version(sanitizer))


def version(sanitizer):
    found = subprocess.run([sanitizer, "--version"], capture_output=True, text=True).stdout
    return next((line.strip() for line in found.splitlines() if "ersion" in line), "of unknown version")


def look(sanitizer, tool, command, work, deadline, options=()):
    """look_once, again where racecheck garbled what it found."""
    for _ in range(READINGS):
        verdict = look_once(sanitizer, tool, command, work, deadline, options)
        if not verdict.get("garbled"):
            break
    return verdict


def look_once(sanitizer, tool, command, work, deadline, options=()):
    """What the tool says of a program: clean, found, crashed (itself), hung or failed (the program), with what it printed."""
    whole = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "100000", *options, *command]
    try:
        ran = bounded.run(whole, min(LIMIT_S, max(deadline(), 1)), cwd=work)
    except subprocess.TimeoutExpired:
        return {"says": "hung", "printed": []}
    printed = (ran.stdout + ran.stderr).splitlines()
    lines = [line[10:].strip() for line in printed if line.startswith("=========")]
    counts = [int(count) for line in lines for count in re.findall(r"SUMMARY: (\d+) (?:error|hazard)", line)]
    if any("Internal Sanitizer Error" in line for line in lines):
        says = "crashed"
    elif any(counts) or ran.returncode == FOUND:
        says = "found"
    elif ran.returncode < 0 or any("didn't terminate successfully" in line or "signal" in line for line in lines):
        says = "crashed"
    elif counts and ran.returncode == 0:
        says = "clean"
    else:
        says = "failed"
    own = [line for line in printed if not line.startswith("=========")] if says == "failed" else []
    verdict = {"says": says, "exit_code": ran.returncode, "printed": ((lines or printed)[:12] + own[-4:]) if says != "clean" else []}
    if tool == "racecheck" and says == "found":
        reports = races_reported(lines)
        races = races_beside(copies_of_ring(), reports)
        told = lines_with(CHOICE, CHOICE_TOLD) | lines_with(BITS, BITS_TOLD) | lines_with(SORT, SORT_TOLD)
        untold = [race for race in races if not places(race) or not places(race) <= told]
        # Only where every race that was counted was printed and read here is none of them another.
        if reports and counts == [len(reports)]:
            verdict["beside_ring"] = len(races)
            verdict["beside_ring_and_told"] = len(untold)
            verdict["printed"] = races[:12]
            verdict["garbled"] = any(not places(race) for race in races)
    return verdict


def copies_of_ring():
    """Lines of the ring's source that ask for bulk copies: what is between a function of that name and its end. And the line
    that reads a stage of it, which nothing but bulk copies writes: racecheck does not always say where the other side is."""
    lines, inside = set(), False
    for number, line in enumerate(COPIES.read_text().splitlines(), 1):
        inside = inside or "inline void bulk_copy(" in line
        if inside:
            lines.add(f"{COPIES.name}:{number}")
        inside = inside and line != "}"
    return lines | lines_with(COPIES, (STAGE_READ,))


def lines_with(path, texts):
    """The places of a source's lines that have one of these texts, each of which some line has."""
    found = list(enumerate(path.read_text().splitlines(), 1))
    for text in texts:
        assert any(text in line for _, line in found), f"no line of {path.name} has {text!r} any more: say here which one does"
    return {f"{path.name}:{number}" for number, line in found if any(text in line for text in texts)}


def races_reported(lines):
    """Each race as one line: that of an access, and those after it that name the other side."""
    reports = []
    for line in lines:
        if "Race reported between" in line:
            reports.append(line)
        elif reports and line.startswith("and "):
            reports[-1] += " " + line
    return reports


def places(report):
    """What a report names: files with their lines."""
    return set(re.findall(r"[\w.]+\.(?:cuh?|h):\d+", report))


def races_beside(copies, reports):
    """Those of these races that none of these places has a part in; where a report names no place it counts too."""
    return [report for report in reports if not places(report) & copies]


def judge(verdicts, sanitizer):
    says = {job: verdict["says"] for job, verdict in verdicts.items()}
    is_clean = lambda job: says[job] == "clean" or says_nothing(verdicts[job], ring_is_lame, arrives)
    wrong, limits, partly, unseen = [], [], {}, {}
    ring_is_lame = says["racecheck", RING, "host"] == "found"
    if ring_is_lame:
        limits.append(f"racecheck finds races in bulk copies that are in order (sanitizer_faults {RING} host; {sanitizer}); those are left out")
    arrives = says["racecheck", ARRIVE, "host"] == "found"
    if arrives:
        limits.append(
            f"racecheck does not follow barriers that warps only arrive at (sanitizer_faults {ARRIVE} host; {sanitizer}); what is told at one is"
            " left out"
        )
    mixes = says["racecheck", "none", BESIDE] == "found"
    if mixes:
        limits.append(f"racecheck mixes up launches that run at once (sanitizer_faults none {BESIDE} 2; {sanitizer})")
    if not ring_is_lame and says["racecheck", RING, "host"] != "clean":
        wrong.append(f"racecheck on {RING}: {says['racecheck', RING, 'host']}")
    for tool in TOOLS:
        # Where the tool does not stand a kernel in order, it can say nothing of any other.
        lame = [way for way in WAYS if says[tool, "none", way] != "clean"]
        for way in WAYS:
            if way not in lame and says[tool, tool, way] != "found":
                wrong.append(f"{tool} does not see its fault in a graph launched by {way}: {says[tool, tool, way]}")
        if lame:
            how = ", ".join(f"{way}: {says[tool, 'none', way]}" for way in lame)
            limits.append(
                f"{tool} cannot look at kernels in order that are launched by {how}"
                f" (sanitizer_faults none {lame[0]} is the smallest case; {sanitizer})"
            )
            if set(lame) & set(FROM_HOST):
                wrong.append(f"{tool} does not work here at all")
        for launch in LAUNCHES:
            for program in PROGRAMS:
                job = tool, program, launch
                if is_clean(job):
                    continue
                left_out = program not in WHOLE or tool == "racecheck" and (mixes or arrives)
                again = verdicts[job].get("without_dispatcher")
                if left_out and again and (again["says"] == "clean" or says_nothing(again, ring_is_lame, arrives)):
                    partly.setdefault(tool, []).append(program)
                elif verdicts[job].get("without_kernels") in ENDED_ILL and is_clean((tool, program, "host-graph")):
                    unseen.setdefault(tool, []).append(program)
                else:
                    wrong.append(f"{tool} on {program}, {launch}: {says[job]}")
    for tool, programs in partly.items():
        whole = [program for program in WHOLE if says[tool, program, "device-graph"] == "clean"]
        limits.append(
            f"{tool} does not stand device-graph's dispatcher in {', '.join(programs)}, and finds the same runs clean without it"
            f" ({' '.join(WITHOUT_DISPATCHER)}), host-graph's too{'; with it, ' + ' and '.join(whole) + ' are clean' if whole else ''} ({sanitizer})"
        )
    for tool, programs in unseen.items():
        limits.append(
            f"{tool} dies in device-graph's {', '.join(programs)} with no kernel to look at too ({' '.join(WITHOUT_KERNELS)}); it finds the same"
            f" kernels clean in host-graph's ({sanitizer})"
        )
    table = {" ".join(job): in_words(verdict) for job, verdict in verdicts.items()}
    printed = {" ".join(job): verdict["printed"] for job, verdict in verdicts.items() if verdict["printed"]}
    details = {"sanitizer": sanitizer, "verdicts": table, "limits_of_the_tool": limits, "wrong": wrong, "printed": printed}
    ours = [job for job in says if job[1] in PROGRAMS]
    clean = sum(map(is_clean, ours))
    line = "; ".join(wrong + limits) or f"{len(TOOLS)} tools see their faults from the host and the device"
    return not wrong, f"{clean} of {len(ours)} runs clean; {line}", details


def says_nothing(verdict, ring_is_lame, arrives):
    """Whether all that was found is what the tool finds in kernels in order too."""
    beside = "beside_ring_and_told" if arrives else "beside_ring"
    return ring_is_lame and verdict.get(beside) == 0


def in_words(verdict):
    again = verdict.get("without_dispatcher")
    if verdict.get("beside_ring") == 0:
        return "nothing but bulk copies into the ring"
    if verdict.get("beside_ring_and_told") == 0:
        return "nothing but bulk copies into the ring and what is told at a barrier that warps only arrive at"
    return f"{verdict['says']}, without the dispatcher {in_words(again)}" if again else verdict["says"]
