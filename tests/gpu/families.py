#!/usr/bin/env python3
"""Holds every kernel that serves a model to Hugging Face transformers, at the shapes that it serves.

    tests/gpu/families.py --tailgraph target/release/tailgraph --json families.json

Needs torch and transformers 5, 64 GB of GPU memory and 6 GB of disk. The models have the 8B's and the 24B's hidden size,
heads and experts, random weights, and six layers: both dense ones, convolution and attention.

Which kernels serve a step depends on its kind, its bucket and the type. So each model runs once in f32 and once in bf16, in
one process of 1,024 sequences and 8,192 rows a step, in rounds that do not overlap (families_rounds.py): every bucket of prompts
has prompts alone, up to as many tokens, and a step of many prompts of 8 tokens, in which every row is within reach of a token
that is compared; every decode bucket has as many sequences, which generate together. All tokens are compared, whether sampled
(with logprobs) or greedy (with logprobs, and without, which is another path of the sampler; some with a repetition penalty).
transformers is given the same tokens.

(a) f32 (TF32 off): what is known of the logits of each token, which are the logprobs of the token and of the 20 best, by their
    ids and by their ranks, is within 1e-4 of transformers', relative to its logits; a greedy token is the best one. A token
    that is told without logprobs has a logit within twice that of the best. The exceptions of oracle.py hold: ties between
    tokens, and routing ties, each of which is shown.
(b) bf16: the mean |difference| of sampled tokens' logprobs to transformers' f32 is no larger than that of transformers' own
    bf16 (given the same tokens), and so is the mean distance of greedy tokens' logits from the best. No bucket is out of line:
    its mean is at most 4 times transformers' of all, no token is further from the best than twice transformers' worst.
(c) Every bucket of decode and mixed steps ran, and `inspect --calls` names no kernel of any bucket, score's too, that served
    no step that ran. The steps are those of the recording. Which kernels serve may change without a change here.

Exit code 0 where all of it holds, 4 where something disagrees. --device cpu is for trying out this program: tailgraph has no
bf16 there, and the calls are those of --gpu.
"""

import argparse
import gc
import json
import subprocess
import sys
from pathlib import Path

import torch
import transformers
from comparison import TOLERANCE, Clock, about, add_options, run, run_options, spread, written
from families_rounds import KINDS, TOP, ask, place, plan
from reference import Reference

HERE = Path(__file__).resolve().parent
MODELS = [f"random:{HERE}/lfm2-{size}-6-layers.json" for size in ("8b-a1b", "24b-a2b")]
# Kernels that lists of calls name and no compared run reaches: why.
UNREACHED = {}
# In (b): of a bucket's mean difference over transformers' of all; of the furthest token over transformers' furthest.
BUCKET, FURTHEST = 4, 2
# So many single findings of a list are in the report. After as many wrong tokens, no more explanations are looked for.
SHOWN = 20
# Positions that transformers takes at once, and logits.
MOST_ROWS, MOST_LOGITS = 8192, 2048


def main():
    return run("families", arguments(), compare, parts)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(parser)
    parser.add_argument("--model", action="append", help="random:PRESET[@SEED], or the folder of a checkpoint; several times [both]")
    parser.add_argument("--max-seqs", type=int, default=1024)
    parser.add_argument("--step-tokens", type=int, default=8192)
    parser.add_argument("--gpu", help="whose calls are listed, as of `inspect --gpu` [default: this GPU; h100 with --device cpu]")
    options = parser.parse_args()
    options.model = options.model or MODELS
    options.gpu = options.gpu or (this_gpu() if options.device == "cuda" else "h100")
    return options


def this_gpu():
    name = torch.cuda.get_device_name().lower()
    known = [gpu for gpu in ("h200", "h100", "a100", "b200") if gpu in name]
    return known[0] if known else sys.exit(f"families: {name} is none of `inspect --gpu`: expected --gpu NAME")


def compare(options, work):
    clock = Clock("families")
    models = {model: compare_model(options, model, work / f"model-{n}", clock) for n, model in enumerate(options.model)}
    return {**about(options), "gpu": options.gpu, "seconds": clock.seconds, "models": models}


def compare_model(options, model, work, clock):
    work.mkdir(exist_ok=True)
    name = Path(model).name.removeprefix("random:").removesuffix(".json")
    part = lambda what, *call: clock.part(f"{name}, {what}", *call)
    checkpoint = written(options, model, work / "checkpoint", clock, f"{name}, synth")
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    sizes = ["--max-seqs", str(options.max_seqs), "--step-tokens", str(options.step_tokens)]
    most = {"decode": options.max_seqs, "mixed": options.step_tokens, "score": options.step_tokens}
    buckets = {kind: up_to(most[kind], rows) for kind, rows in inspect(options, checkpoint)["buckets"].items()}
    draw = torch.Generator().manual_seed(options.seed)
    rounds = plan(buckets, options, config.vocab_size, draw)
    narrow = "bf16" if options.device == "cuda" else "f32"
    ran = {}
    # tailgraph first: processes of their own, whose memory is free again when transformers starts.
    for told, dtype in (("f32", "f32"), ("bf16", narrow)):
        command = [options.tailgraph, "generate", "--model", checkpoint, *run_options(options), *sizes, "--dtype", dtype]
        ran[told] = part(f"tailgraph {told}", ask, command, rounds, work, buckets)
    calls = {dtype: hold_calls(options, checkpoint, sizes, dtype, buckets, ran[dtype]) for dtype in ran}
    reference = part("transformers load", Reference, checkpoint, options.device)
    requests = ran["bf16"].requests
    own_of = lambda logits, some: (chances(logits, some), scores_of(logits, some).argmax(-1))
    own = part("transformers bf16", each, reference, requests, own_of)
    reference.widen()
    reference.count_experts()
    exact = part("transformers f32, of bf16", lambda: each(reference, requests, lambda logits, some: differences(logits, some, own)))
    experts, reference.hits = spread(reference.hits), None
    wide = part("transformers f32", compare_f32, reference, ran["f32"].requests)
    del reference
    # Its hooks hold it in a circle, and its memory is wanted by the next model's processes.
    gc.collect()
    if options.device == "cuda":
        torch.cuda.empty_cache()
    if checkpoint == str(work / "checkpoint") and not options.keep:
        for file in (work / "checkpoint").iterdir():
            file.unlink()
    return {
        "name": name,
        "experts": experts,
        "steps": {dtype: of.steps for dtype, of in ran.items()},
        "f32": {**wide, "calls": calls["f32"], "holds": wide["holds"] and calls["f32"]["holds"]},
        "bf16": compare_bf16(requests, exact, calls["bf16"]),
    }


def up_to(most, ladder):
    """The buckets that steps of so many rows at most run in."""
    return [rows for rows, below in zip(ladder, [0, *ladder]) if below < most]


def inspect(options, checkpoint, *more):
    command = [options.tailgraph, "inspect", "--model", checkpoint, "--format", "json", *more]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode != 0:
        sys.exit(f"families: {' '.join(command)}: exit code {found.returncode}: {found.stderr}")
    return json.loads(found.stdout)


def hold_calls(options, checkpoint, sizes, dtype, buckets, ran):
    """(c): the kernels of all buckets against those of the steps that ran."""
    named, served = {}, {}
    for kind in KINDS:
        rows = ",".join(map(str, buckets[kind]))
        listed = inspect(options, checkpoint, *sizes, "--calls", "--gpu", options.gpu, "--dtype", dtype, "--kind", kind, "--tokens", rows)
        assert sorted({step["rows"] for step in listed["steps"]}) == buckets[kind], f"{kind}: {rows}"
        for step in listed["steps"]:
            bucket = place(kind, step["rows"])
            for call in step["calls"]:
                named.setdefault(call["kernel"], set()).add(bucket)
                if bucket in ran.reached:
                    served.setdefault(call["kernel"], set()).add(bucket)
    all_buckets = [place(kind, rows) for kind in ("decode", "mixed") for rows in buckets[kind]]
    idle = [bucket for bucket in all_buckets if bucket not in ran.reached]
    untested = sorted(named.keys() - served.keys() - UNREACHED.keys())
    return {
        "holds": not idle and not untested and not ran.missed and not served.keys() & UNREACHED.keys(),
        "kernels": {kernel: sorted(of, key=by_rows) for kernel, of in sorted(served.items())},
        "buckets_that_did_not_run": idle,
        "rounds_without_their_step": ran.missed,
        "kernels_that_served_no_step": {kernel: sorted(named[kernel], key=by_rows) for kernel in untested},
        "unreached": {kernel: why for kernel, why in UNREACHED.items() if kernel in named},
        "reached_though_listed_as_unreached": sorted(served.keys() & UNREACHED.keys()),
    }


def by_rows(bucket):
    kind, rows = bucket.split()
    return kind, int(rows)


def each(reference, requests, take):
    """take(logits [N, G, V], requests) of all requests, those of equal lengths together. Gives what it gave, by request, [G] each."""
    alike = {}
    for request in requests:
        alike.setdefault((len(request.prompt), len(request.tokens)), []).append(request)
    found = {}
    for (prompt, new), some in alike.items():
        at_once = max(1, min(MOST_ROWS // (prompt + new), MOST_LOGITS // new))
        for first in range(0, len(some), at_once):
            batch = some[first : first + at_once]
            tokens = torch.tensor([request.prompt + request.tokens[:-1] for request in batch])
            taken = take(reference.tail(tokens, new), batch)
            for row, request in enumerate(batch):
                found[request.number] = tuple(part[row].cpu() for part in taken)
    return found


def tokens_of(requests, device):
    return torch.tensor([request.tokens for request in requests], device=device)


def chances(logits, requests):
    """The logprobs of the tokens that tailgraph chose."""
    return logits.gather(-1, tokens_of(requests, logits.device)[..., None])[..., 0] - logits.logsumexp(-1)


def scores_of(logits, requests):
    return torch.stack([request.scores(of_request) for of_request, request in zip(logits, requests)])


def differences(logits, requests, own):
    """How far tailgraph and transformers' bf16 (`own`) are from these logits: the token's logprobs (NaN where tailgraph told none),
    then how far the greedy tokens' logits are below the best."""
    exact, scores = chances(logits, requests), scores_of(logits, requests)
    own_chances = torch.stack([own[request.number][0] for request in requests]).to(logits.device)
    own_best = torch.stack([own[request.number][1] for request in requests]).to(logits.device)
    told = torch.stack([request.chances for request in requests]).to(logits.device)
    # A penalty below 1 makes logits, and so their distances, larger.
    scale = torch.tensor([request.penalty for request in requests], device=logits.device)[:, None]
    behind = lambda tokens: scale * (scores.max(-1).values - scores.gather(-1, tokens[..., None])[..., 0])
    return (told - exact).abs(), (own_chances - exact).abs(), behind(tokens_of(requests, logits.device)), behind(own_best)


def compare_bf16(requests, found, calls):
    sampled, greedy = {}, {}
    for request in requests:
        ours, theirs, behind, own_behind = found[request.number]
        of, values = (greedy, (behind, own_behind)) if request.greedy else (sampled, (ours, theirs))
        of.setdefault(request.round, []).append(torch.stack(values))
    join = lambda groups: torch.cat([part for parts in groups.values() for part in parts], dim=1).double()
    by_bucket = lambda groups, way: {name: [float(way(row)) for row in torch.cat(parts, dim=1).double()] for name, parts in groups.items()}
    means, furthest = join(sampled).mean(1).tolist(), join(greedy).max(1).values.tolist()
    behind = join(greedy).mean(1).tolist()
    of_buckets, behind_of_buckets = by_bucket(sampled, torch.mean), by_bucket(greedy, torch.max)
    # A difference that is no number is none that is small.
    out = [name for name, (ours, _) in of_buckets.items() if not ours <= BUCKET * means[1]]
    out += [name for name, (ours, _) in behind_of_buckets.items() if not ours <= FURTHEST * furthest[1]]
    pair = lambda values: {"tailgraph": values[0], "transformers": values[1]}
    return {
        "holds": means[0] <= means[1] and behind[0] <= behind[1] and not out and calls["holds"],
        "tokens": {"sampled": join(sampled).shape[1], "greedy": join(greedy).shape[1]},
        "mean_logprob_difference_to_transformers_f32": pair(means),
        "greedy_below_best": {"mean": pair(behind), "furthest": pair(furthest)},
        "buckets_out_of_line": sorted(set(out)),
        "buckets": {
            name: {"mean_logprob_difference": pair(of_buckets[name]), "furthest_below_best": pair(behind_of_buckets[name])}
            for name in of_buckets
        },
        "calls": calls,
    }


def errors(logits, request, first=0):
    """What is told of logits [P, V], which are of the request's tokens from `first` on, against them: the relative error, the
    largest difference that it stands for, and how far the token's logit is below the best. [P] each."""
    device, positions = logits.device, slice(first, first + len(logits))
    token = torch.tensor(request.tokens[positions], device=device)[:, None]
    scores, size = request.scores(logits, first), logits.square().mean(-1).sqrt()
    behind = scores.max(-1).values - scores.gather(-1, token)[:, 0]
    if request.best_ids is None:
        # A penalty below 1 makes logits, and so their distances, larger, as in differences().
        size = size / request.penalty
        return behind / 2 / size, TOLERANCE * size, behind
    chances = logits.log_softmax(-1)
    ids, told = request.best_ids[positions].to(device), request.best[positions].to(device)
    apart = torch.cat(
        [
            request.chances[positions].to(device)[:, None] - chances.gather(-1, token),
            told - chances.gather(-1, ids),
            told - chances.topk(TOP, dim=-1).values,
        ],
        dim=1,
    )
    return apart.square().mean(1).sqrt() / size, apart.abs().max(1).values, behind


def compare_f32(reference, requests):
    found = each(reference, requests, lambda logits, some: tuple(map(torch.stack, zip(*(errors(l, r) for l, r in zip(logits, some))))))
    of_buckets, all_errors, ties, routing, wrong, agree = {}, [], [], [], [], 0
    for request in requests:
        for index, (error, largest, behind) in enumerate(torch.stack(found[request.number]).T.tolist()):
            shown = {"bucket": request.round, "request": request.number, "token": index, "relative_error": error}
            # What is no number is not within anything.
            if not error <= TOLERANCE:
                turned, error, logits = explain(reference, request, index) if len(wrong) < SHOWN else ([], error, None)
                shown |= {"turned": [{"layer": l, "position": p, "margin": m} for l, p, m in turned], "relative_error_then": error}
                if not error <= TOLERANCE:
                    wrong.append(shown)
                    continue
                routing.append(shown)
                error, largest, behind = (float(value[0]) for value in errors(logits[None], request, index))
            all_errors.append(error)
            of_buckets.setdefault(request.round, []).append(error)
            if request.greedy and behind > 0:
                (ties if behind <= 2 * largest else wrong).append(shown | {"below_best": behind, "largest_difference": largest})
            agree += request.greedy and behind == 0
    return {
        "holds": not wrong,
        "tokens": len(all_errors) + len(wrong),
        "greedy": {"tokens": sum(len(r.tokens) for r in requests if r.greedy), "agree_routing_ties_decided_alike": agree},
        "relative_error": {
            "tolerance": TOLERANCE,
            "median": sorted(all_errors)[len(all_errors) // 2] if all_errors else None,
            "largest_routing_ties_decided_alike": max(all_errors, default=None),
        },
        "buckets": {name: {"tokens": len(of), "largest_relative_error": max(of)} for name, of in of_buckets.items()},
        "ties": {"tokens": len(ties), "some": ties[:SHOWN]},
        "routing_ties": {"tokens": len(routing), "some": routing[:SHOWN]},
        "wrong": {"tokens": len(wrong), "some": wrong[:SHOWN]},
    }


def explain(reference, request, index):
    tokens = torch.tensor(request.prompt + request.tokens[:index])
    return reference.explain(tokens, lambda logits: float(errors(logits[None], request, index)[0]), TOLERANCE)


def parts(report):
    of_models = [(f"{of['name']} {dtype}", of[dtype]) for of in report["models"].values() for dtype in ("f32", "bf16")]
    return [(name, part, summary(part)) for name, part in of_models]


def summary(part):
    calls = part["calls"]
    wrong = {
        "did not run": calls["buckets_that_did_not_run"],
        "rounds without their step": calls["rounds_without_their_step"],
        "kernels that served no step": list(calls["kernels_that_served_no_step"]),
        "listed as unreached, yet reached": calls["reached_though_listed_as_unreached"],
        "buckets out of line": part.get("buckets_out_of_line"),
    }
    said = f"{len(calls['kernels'])} kernels"
    if "relative_error" in part:
        largest = part["relative_error"]["largest_routing_ties_decided_alike"] or 0
        said += (
            f", {part['tokens']} tokens, largest relative error {largest:.1e}, ties {part['ties']['tokens']},"
            f" routing ties {part['routing_ties']['tokens']}, wrong {part['wrong']['tokens']}"
        )
    else:
        for what in (part["mean_logprob_difference_to_transformers_f32"], part["greedy_below_best"]["mean"]):
            said += f", {what['tailgraph']:.3e} (transformers {what['transformers']:.3e})"
    return said + "".join(f"; {what}: {', '.join(names)}" for what, names in wrong.items() if names)


if __name__ == "__main__":
    sys.exit(main())
