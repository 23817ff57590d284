#!/usr/bin/env python3
"""Holds tailgraph to Hugging Face transformers, on the same checkpoint and the same GPU, at full size.

    tests/gpu/oracle.py --tailgraph target/release/tailgraph --json oracle.json

Needs torch and transformers 5, 64 GB of GPU memory and 20 GB of disk for random:lfm2-8b-a1b; takes two to three
minutes. `tailgraph synth` writes the checkpoint, which is removed at the end unless --keep says otherwise.

(a) 1,024 prompts of 32 tokens in f32 (TF32 off), logits of the last position: every top-1 token agrees, and every
    prompt's relative error (norm of the differences over the norm) is at most 1e-4. Two exceptions, each shown:
    - a tie: the two tokens' logits in transformers are closer than twice the largest difference of that prompt;
    - a routing tie: somewhere in the prompt the last expert chosen and the first one left out were so close that f32
      noise decided. Proof: transformers, made to decide those ties the other way, gives tailgraph's logits within 1e-4.
    How often f32 noise decides is measured on transformers alone: the same prompts in batches of another size.
(b) 512 positions, teacher-forced: the mean |difference| of the next token's logprob to transformers' f32 is no larger
    for tailgraph's bf16 than for transformers' own bf16.

(c) Weights and activations in 8 bits (`--weights fp8 --activations fp8`), on a GPU: --rows-8-bits positions in one step. The distance of their
    logits from what the same weights give in f32 is at most 1.05 times that of transformers, which quantizes what every product multiplies
    alike (E4M3, a scale for each 128 columns of a row) and computes the rest in f32.

(d) With --soak, the report of profiles/soak.rs on the same model in f32: each request whose logprobs in company and alone
    differ by more than rounding does so by a routing tie, shown in the same way: transformers gives the logprobs of both,
    within 1e-3, when near-tied decisions are taken as they must have been.

Exit code 0 where all of it holds, 4 where something disagrees. On --device cpu, which is for trying out this program,
tailgraph only has f32, and (b) uses that.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
import transformers
from comparison import TOLERANCE, Clock, about, add_options, run, run_options, spread, written
from reference import NEAR_TIE, Reference, relative
from safetensors.torch import load_file, save_file

# The difference of logprobs from which profiles/soak.rs reports that they jump.
JUMP = 1e-3


def main():
    return run("oracle", arguments(), compare, parts)


def parts(report):
    return [(part, report[part], summary(report[part])) for part in ("f32", "bf16", "rows_8_bits", "soak") if report[part]]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(parser)
    parser.add_argument("--model", default="random:lfm2-8b-a1b", help="random:PRESET[@SEED], or the folder of a checkpoint")
    parser.add_argument("--prompts", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=32, help="of a prompt in (a)")
    parser.add_argument("--positions", type=int, default=512, help="in (b)")
    parser.add_argument("--rows-8-bits", type=int, default=2048, help="positions in (c)")
    parser.add_argument("--batch", type=int, default=128, help="prompts that transformers takes at once")
    parser.add_argument("--soak", help="the JSON of profiles/soak.rs")
    return parser.parse_args()


def compare(options, work):
    clock, on_gpu = Clock("oracle"), options.device == "cuda"
    checkpoint = written(options, options.model, work / "checkpoint", clock)
    vocabulary = transformers.AutoConfig.from_pretrained(checkpoint).vocab_size
    draw = torch.Generator().manual_seed(options.seed)
    prompts = torch.randint(8, vocabulary, (options.prompts, options.tokens), generator=draw)
    # Position i says how likely token i + 1 is.
    text = torch.randint(8, vocabulary, (1, options.positions + 1), generator=draw)
    prompts[:, 0] = text[:, 0] = 1
    save_file({"input_ids": prompts.int()}, work / "prompts.safetensors")
    save_file({"input_ids": text[:, :-1].contiguous().int()}, work / "text.safetensors")
    many = torch.randint(8, vocabulary, (1, options.rows_8_bits), generator=draw)
    save_file({"input_ids": many.int()}, work / "many.safetensors")

    def score(dtype, prompts, *more):
        output = work / f"logits-of-{prompts}"
        size = ["--max-seqs", "256", "--step-tokens", "4096"] if on_gpu else []
        command = [options.tailgraph, "score", "--model", checkpoint, *run_options(options), *size, "--dtype", dtype]
        command += ["--input", str(work / prompts), "--output", str(output), *more]
        found = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if found.returncode != 0:
            sys.exit(f"oracle: {' '.join(command)}: exit code {found.returncode}: {found.stderr}")
        return load_file(output), found.stderr.strip().splitlines()[-1:]

    # tailgraph first: a process of its own, whose memory is free again when transformers starts.
    ours, ours_rate = clock.part("tailgraph f32", score, "f32", "prompts.safetensors", "--logits", "last")
    ours = torch.stack([ours[f"logits.{i}"] for i in range(options.prompts)])
    narrow = "bf16" if on_gpu else "f32"
    ours_text, _ = clock.part(f"tailgraph {narrow}", score, narrow, "text.safetensors")
    ours_text = ours_text["logits.0"]
    rows_8_bits = None
    if on_gpu:
        rows_8_bits, _ = clock.part("tailgraph 8 bits", score, "bf16", "many.safetensors", "--weights", "fp8", "--activations", "fp8")

    reference = clock.part("transformers load", Reference, checkpoint, options.device)
    theirs_text = clock.part("transformers bf16", lambda: reference.logits(text[:, :-1])[0].cpu())
    reference.widen()
    exact_text = clock.part("transformers f32, (b)", lambda: reference.logits(text[:, :-1])[0].cpu())
    reference.count_experts()
    theirs, margins = clock.part("transformers f32, (a)", reference.last_logits, prompts, options.batch)
    experts, reference.hits = spread(reference.hits), None
    again = clock.part("transformers f32, again", reference.last_logits, prompts, max(options.batch * 3 // 8, 1))
    exact = clock.part("comparison", compare_f32, reference, prompts, ours, theirs, margins, again)
    soak = clock.part("soak's jumps", explain_soak, reference, options) if options.soak else None
    if rows_8_bits:  # last: the weights are others from here on
        rows_8_bits = clock.part("transformers 8 bits", compare_8_bits, reference, many, rows_8_bits["logits.0"])
    return {
        **about(options),
        "model": options.model,
        "seconds": clock.seconds,
        "tailgraph_rate": ours_rate,
        "experts": experts,
        "f32": exact,
        "bf16": compare_bf16(ours_text, theirs_text, exact_text, text[0, 1:]),
        "rows_8_bits": rows_8_bits,
        "soak": soak,
    }


def compare_f32(reference, prompts, ours, theirs, margins, again):
    again, again_margins = again
    errors = [relative(found, wanted) for found, wanted in zip(ours, theirs)]
    own_errors = torch.tensor([relative(found, wanted) for found, wanted in zip(again, theirs)])
    # Noise of the margins: between two batch sizes, where no decision differed.
    calm = own_errors <= TOLERANCE
    moved = [float((margins[layer] - again_margins[layer])[calm].abs().max()) for layer in margins]
    decided, ties, routing, wrong = theirs.clone(), [], [], []
    for prompt, error in enumerate(errors):
        if error > TOLERANCE:
            found = ours[prompt].to(reference.device)
            turned, left, logits = reference.explain(prompts[prompt], lambda logits: relative(found, logits), TOLERANCE)
            shown = {
                "prompt": prompt,
                "relative_error": error,
                # None: alone, in a batch of one, transformers decides as tailgraph does.
                "turned": [{"layer": l, "position": p, "margin": m} for l, p, m in turned],
                "closest_decision": closest(margins, prompt),
                "relative_error_then": left,
            }
            if left > TOLERANCE:
                wrong.append(shown)
                continue
            routing.append(shown)
            decided[prompt] = logits
        wanted, found = int(decided[prompt].argmax()), int(ours[prompt].argmax())
        if wanted != found:
            gap = float(decided[prompt, wanted] - decided[prompt, found])
            largest = float((decided[prompt] - ours[prompt]).abs().max())
            tie = {"prompt": prompt, "tokens": [wanted, found], "gap": gap, "largest_difference": largest}
            (ties if gap <= 2 * largest else wrong).append(tie)
    return {
        "holds": not wrong,
        "prompts": len(prompts),
        "top1_agree": int((ours.argmax(1) == theirs.argmax(1)).sum()),
        "top1_agree_routing_ties_decided_alike": int((ours.argmax(1) == decided.argmax(1)).sum()),
        "top1_equals_last_input_token": int((theirs.argmax(1) == prompts[:, -1]).sum()),
        "relative_error": {
            "tolerance": TOLERANCE,
            "pooled": relative(ours, theirs),
            "pooled_routing_ties_decided_alike": relative(ours, decided),
            "median": sorted(errors)[len(errors) // 2],
            "largest": max(errors),
            "largest_routing_ties_decided_alike": max(relative(o, d) for o, d in zip(ours, decided)),
        },
        "largest_absolute_difference_routing_ties_decided_alike": float((ours - decided).abs().max()),
        "logits_standard_deviation": float(theirs.std()),
        "near_tie": NEAR_TIE,
        "near_ties": int(sum((margin <= NEAR_TIE).sum() for margin in margins.values())),
        "decisions": sum(margin.numel() for margin in margins.values()),
        "transformers_against_itself": {
            "what": "the same prompts in f32, in batches of another size",
            "pooled_relative_error": relative(again, theirs),
            "prompts_beyond_tolerance": int((~calm).sum()),
            "largest_margin_difference": max(moved),
            "top1_agree": int((again.argmax(1) == theirs.argmax(1)).sum()),
        },
        "ties": ties,
        "routing_ties": routing,
        "wrong": wrong,
    }


def closest(margins, prompt):
    """The decision of the prompt that noise turns most easily."""
    margin, layer, position = min((float(m[prompt].min()), layer, int(m[prompt].argmin())) for layer, m in margins.items())
    return {"layer": layer, "position": position, "margin": margin}


def compare_bf16(ours, theirs, exact, targets):
    ours, theirs, exact = (logits.double().log_softmax(-1) for logits in (ours, theirs, exact))

    def distance(found):
        difference = (found - exact).abs()
        return {"next_token": float(difference.gather(1, targets[:, None]).mean()), "vocabulary": float(difference.mean())}

    found = {"tailgraph": distance(ours), "transformers": distance(theirs)}
    return {
        "holds": found["tailgraph"]["next_token"] <= found["transformers"]["next_token"],
        "positions": len(targets),
        "mean_logprob_difference_to_transformers_f32": found,
        "top1_agree": {
            "tailgraph": int((ours.argmax(1) == exact.argmax(1)).sum()),
            "transformers": int((theirs.argmax(1) == exact.argmax(1)).sum()),
        },
    }


def compare_8_bits(reference, tokens, ours):
    reference.quantize_weights()
    exact = reference.logits(tokens)[0].cpu()
    with reference.quantized_rows():
        theirs = reference.logits(tokens)[0].cpu()
    found = {"tailgraph": relative(ours, exact), "transformers": relative(theirs, exact)}
    return {"holds": found["tailgraph"] <= 1.05 * found["transformers"], "positions": len(ours), "relative_distance_to_f32": found}


def explain_soak(reference, options):
    report = json.loads(Path(options.soak).read_text())
    if report["model"] != options.model:
        sys.exit(f"oracle: {options.soak} is of {report['model']}, expected {options.model}")
    shown = []
    for jump in report["alone"]["jumps"]:
        tokens, sides = torch.tensor(jump["sequence"]), {}
        for side in ("in_company", "alone"):
            ids = torch.tensor([token for token, _ in jump[side]], device=reference.device)
            wanted = torch.tensor([logprob for _, logprob in jump[side]], device=reference.device)
            distance = lambda logits: float((logits.double().log_softmax(-1)[ids] - wanted).abs().max())
            turned, left, _ = reference.explain(tokens, distance, JUMP)
            turned = [{"layer": l, "position": p, "margin": m} for l, p, m in turned]
            sides[side] = {"turned": turned, "largest_difference_then": left, "holds": left <= JUMP}
        shown.append({"number": jump["number"], "positions": len(tokens), **sides})
    holds = all(jump[side]["holds"] for jump in shown for side in ("in_company", "alone"))
    return {"holds": holds, "requests": report["alone"]["requests"], "jumps": shown}


def summary(part):
    if "prompts" in part:
        error = part["relative_error"]
        return (
            f"top-1 {part['top1_agree']}/{part['prompts']}"
            f" ({part['top1_agree_routing_ties_decided_alike']} with routing ties decided alike), ties {len(part['ties'])},"
            f" routing ties {len(part['routing_ties'])} (transformers against itself:"
            f" {part['transformers_against_itself']['prompts_beyond_tolerance']}), relative error {error['pooled']:.2e}"
            f" (largest of a prompt {error['largest_routing_ties_decided_alike']:.2e} with routing ties decided alike)"
        )
    if "relative_distance_to_f32" in part:
        found = part["relative_distance_to_f32"]
        return f"{part['positions']} positions, relative distance to f32 {found['tailgraph']:.4f}, transformers {found['transformers']:.4f}"
    if "jumps" in part:
        return f"{len(part['jumps'])} of {part['requests']} requests have a routing tie decided differently in company"
    found = part["mean_logprob_difference_to_transformers_f32"]
    return f"mean |logprob difference| {found['tailgraph']['next_token']:.3e}, transformers {found['transformers']['next_token']:.3e}"


if __name__ == "__main__":
    sys.exit(main())
