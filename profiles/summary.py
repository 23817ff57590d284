#!/usr/bin/env python3
"""What a report of Nsight, or of `tailgraph bench`, shows, as a table for people.

summary.py graphs REPORT.sqlite   launches of whole graphs, by graph (Nsight Systems, `nsys stats` makes the file)
summary.py nodes REPORT.sqlite    kernels in graphs by step, layer and operation (of `tailgraph profile --nodes`)
summary.py kernels REPORT.csv     kernels in the order they ran (ncu --import REPORT --page raw --csv --print-units base)
summary.py steps REPORT.json ...  decode steps against their floors (tailgraph bench decode --format json)
summary.py devices REPORT.json ...
                                  tokens a second on several devices against one (tailgraph bench --format json)
"""

import bisect
import csv
import json
import re
import sqlite3
import statistics
import sys


def table(rows):
    """Prints rows of cells: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:])]
        print("  " + "  ".join(cells).rstrip())


def stages(base):
    """By GPU, its stage as ranges name it: `stage 1 on cuda:1`."""
    tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    texts = []
    if {"NVTX_EVENTS", "StringIds"} <= tables:
        query = "SELECT DISTINCT coalesce(e.text, s.value) FROM NVTX_EVENTS e LEFT JOIN StringIds s ON e.textId = s.id"
        texts = [text for (text,) in base.execute(query) if text]
    found = [re.search(r"stage \d+ on cuda:(\d+)", text) for text in texts]
    return {int(stage[1]): stage[0] for stage in found if stage}


def graphs(path):
    """Graphs are traced into tables of their own, one for the host's launches and one for the device's."""
    base = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    names = base.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    found = [name for (name,) in names if name.endswith("GRAPH_TRACE")]
    if not found:
        print("  none was traced")
    for name in found:
        columns = [column[1] for column in base.execute(f'PRAGMA table_info("{name}")')]
        if not {"start", "end", "graphId"} <= set(columns):
            sys.exit(f"{path}: {name} has the columns {', '.join(columns)}, expected start, end and graphId among them")
        device = "deviceId" if "deviceId" in columns else "0"
        named, by_graph = stages(base), {}
        for gpu, graph, start, end in base.execute(f'SELECT {device}, graphId, start, "end" FROM "{name}"'):
            by_graph.setdefault((gpu, graph), []).append((end - start) / 1e3)
        rows = [["graph", "launches", "median us", "least us", "most us", "all ms"] + (["on"] if named else [])]
        for (gpu, graph), times in sorted(by_graph.items(), key=lambda item: -sum(item[1])):
            figures = [statistics.median(times), min(times), max(times), sum(times) / 1e3]
            where = [named.get(gpu, f"cuda:{gpu}")] if named else []
            rows.append([str(graph), str(len(times))] + [f"{figure:.2f}" for figure in figures] + where)
        print(f"  {name}: {sum(map(len, by_graph.values()))} launches")
        table(rows)


def nodes(path):
    """A kernel's node is a copy of the one that was captured, which is named by the last mark of the thread that captured it."""
    base = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    needed = {"CUPTI_ACTIVITY_KIND_KERNEL", "CUDA_GRAPH_NODE_EVENTS", "NVTX_EVENTS", "StringIds"}
    if not needed <= tables:
        sys.exit(f"{path}: has no table {', '.join(sorted(needed - tables))}, expected a run by `tailgraph profile --nodes` that captures graphs")
    marks = {}
    query = "SELECT e.globalTid, e.start, coalesce(e.text, s.value) FROM NVTX_EVENTS e LEFT JOIN StringIds s ON e.textId = s.id"
    for thread, start, text in base.execute(query + " ORDER BY e.start"):
        if text and text.startswith("node of "):
            marks.setdefault(thread, []).append((start, text.removeprefix("node of ")))
    copied, made = {}, {}
    for node, original, start, thread in base.execute("SELECT graphNodeId, originalGraphNodeId, start, globalTid FROM CUDA_GRAPH_NODE_EVENTS"):
        if original:
            copied[node] = original
        else:
            made[node] = (thread, start)

    def name(node):
        while node in copied:
            node = copied[node]
        thread, start = made.get(node, (None, 0))
        before = bisect.bisect(marks.get(thread, []), start, key=lambda mark: mark[0])
        return marks[thread][before - 1][1] if before else "not named"

    by_name = {}
    for node, start, end in base.execute('SELECT graphNodeId, start, "end" FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphNodeId > 0'):
        by_name.setdefault(name(node), []).append((end - start) / 1e3)
    rows = [["kernel in a graph", "runs", "median us", "all ms"]]
    for text, times in sorted(by_name.items(), key=lambda item: -sum(item[1])):
        rows.append([text, str(len(times)), f"{statistics.median(times):.2f}", f"{sum(times) / 1e3:.2f}"])
    table(rows)


# Title, the counter's name in the table of all, and what its base unit is divided by.
COUNTERS = [
    ("us", "gpu__time_duration.sum", 1e3),
    ("DRAM read MB", "dram__bytes_read.sum", 1e6),
    ("written MB", "dram__bytes_write.sum", 1e6),
    ("DRAM %", "dram__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    ("SM %", "sm__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    ("registers", "launch__registers_per_thread", 1),
    ("blocks", "launch__grid_size", 1),
    ("threads", "launch__block_size", 1),
]


def kernels(path):
    with open(path, newline="") as file:
        # Lines of the tool itself begin with ==.
        lines = csv.DictReader(line for line in file if not line.startswith("=="))
        # The first line holds units.
        runs = [line for line in lines if line.get("ID")]
        names = lines.fieldnames or []
    if "Kernel Name" not in names:
        sys.exit(f"{path}: no column 'Kernel Name', expected ncu's --page raw --csv")
    if not runs:
        sys.exit(f"{path}: no kernel was profiled; expected a step of that stage, kind and bucket in the run")
    shown = [counter for counter in COUNTERS if counter[1] in names]
    rows = [["kernel"] + [title for title, _, _ in shown]]
    for run in runs:
        cells = [run["Kernel Name"].split("(")[0]]
        for _, name, divisor in shown:
            value = run[name].replace(",", "")
            try:
                number = float(value) / divisor
            except ValueError:
                cells.append(value or "-")
                continue
            cells.append(f"{number:.0f}" if number == int(number) else f"{number:.2f}")
        rows.append(cells)
    table(rows)


def steps(*paths):
    rows = [["launch", "type", "sequences", "context", "experts", "floor ms", "p50 ms", "p99 ms", "of the floor", "steps"]]
    for path in paths:
        with open(path) as file:
            report = json.load(file)
        for row in report:
            if row["kind"] != "decode" or row["median_step_ms"] is None:
                sys.exit(f"{path}: found {row['kind']} of {row['batch']} without times of steps, expected bench decode's")
            # A GPU that nobody knows has no floor.
            floor, median = row["floor_ms"], row["median_step_ms"]
            figures = [(row["experts_hit_mean"], 1), (floor, 3), (median, 3), (row["p99_step_ms"], 3), (floor and median / floor, 2)]
            rows.append(
                [row["launch"], row["dtype"], str(row["batch"]), str(row["n_prompt"] + row["n_gen"])]
                + ["-" if figure is None else f"{figure:.{digits}f}" for figure, digits in figures]
                + [str(row["step_count"])]
            )
    table(rows)


def devices(*paths):
    """What differs from one device's figure: how many there are, as what, and of what is served by rows at once, these."""
    rows = [["kind", "type", "logits", "launch", "busy", "p99 ms", "devices", "sequences", "tokens/s", "of one"]]
    alone = {}
    for path in paths:
        with open(path) as file:
            report = json.load(file)
        for row in report:
            kept = {True: "on device", False: "to the host", None: "-"}[row["logits_on_device"]]
            replicas, stages, rate = row["replicas"], row.get("stage_devices", 1), row["median_ts"]
            devices = replicas * stages
            each = row["batch"] if row["kind"] == "score" else max(row["batch"] // devices, 1)
            p99 = "-" if row.get("p99_itl_ms") is None else f"{row['p99_itl_ms']:.3f}"
            how = [row["launch"] or "-", str(row["cpu_load"]), p99]
            key = (row["kind"], row["dtype"], kept, each, row["n_prompt"], row["n_gen"])
            if devices == 1:
                alone[key] = rate
            ratio = f"{rate / alone[key]:.3f}" if key in alone else "-"
            named = "1" if devices == 1 else f"{devices}-{'replicas' if stages == 1 else 'stages'}"
            rows.append([row["kind"], row["dtype"], kept, *how, named, str(row["batch"]), f"{rate:.0f}", ratio])
    table(rows)


if __name__ == "__main__":
    kinds = {"graphs": graphs, "nodes": nodes, "kernels": kernels, "steps": steps, "devices": devices}
    name, paths = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if name not in kinds or not paths or (len(paths) > 1 and name not in ("steps", "devices")):
        sys.exit(__doc__.strip())
    kinds[name](*paths)
