"""The rounds of families.py: what is asked of `tailgraph generate`, and what its recording says of it.

A round begins when all answers of the one before are there, so its steps are its own. Which steps were made of it stands in
the recording: each turn of the scheduler says how many requests it has seen.
"""

import bisect
import json
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field

import numpy
import torch

# TG_KIND_* of kernels/abi.h, in order.
KINDS = ("decode", "mixed", "score")
# TG_ACTION_* of a turn that composed a step.
COMPOSED = 1
# Every eighth request has this penalty: tokens of the prompt and those generated become likelier, so that it shows which were marked as seen.
PENALTY = 0.25
# Logprobs of the best tokens, as many as may be asked for.
TOP = 20
# Tokens of each of many prompts: one more than a token of the last layers' convolutions sees.
SHORT = 8
# New tokens of each sequence of a decode round, and of all such rounds of a bucket at least.
NEW, LEAST_NEW = 24, 96
# Prompts of each length that are alone in their steps: as many for each bucket, in the larger ones so many tokens' worth.
ALONE, MOST_ALONE = 16, 2048
# Requests that come while a step of the most rows runs, at least: some 6 to 12 a ms, by the host, and of six layers, of which the last
# compute few rows, the step takes some 7 ms on an H200.
AHEAD = 48


@dataclass
class Round:
    """`wanted`: a step that is to be among its steps: kind and rows of the bucket. `many`: one of several sequences. `ahead`:
    prompts before the others, each of a whole step and for one token."""

    wanted: tuple
    many: bool
    prompts: list
    new: int
    ahead: list = ()

    def name(self):
        """What its tokens are reported as: with all that are of steps like the wanted one."""
        return place(*self.wanted)

    def all(self, largest):
        """(name, prompt, new tokens) of each; a whole step has the bucket of `largest` rows."""
        ahead = [(place("mixed", largest), prompt, 1) for prompt in self.ahead]
        return ahead + [(self.name(), prompt, self.new) for prompt in self.prompts]


def place(kind, rows):
    """A kind and a bucket, as reports have them."""
    return f"{kind} {rows}"


@dataclass
class Asked:
    """A request of the rounds called `round`, and what came of it. `chances` [G] are logprobs of its tokens, NaN where none were
    asked for; `best` [G, TOP] those of the best ids."""

    round: str
    number: int
    prompt: list
    greedy: bool
    penalty: float = 1.0
    tokens: list = field(default_factory=list)
    chances: torch.Tensor = None
    best_ids: torch.Tensor = None
    best: torch.Tensor = None

    def scores(self, logits, first=0):
        """What the token is the best of, greedy: of logits [P, V], which are of tokens from `first` on, with the repetition penalty."""
        if self.penalty == 1.0:
            return logits
        seen = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
        seen[self.prompt + self.tokens[:first]] = True
        rows = []
        for place, row in enumerate(logits):
            rows.append(torch.where(seen, torch.where(row > 0, row / self.penalty, row * self.penalty), row))
            seen[self.tokens[first + place]] = True
        return torch.stack(rows)


@dataclass
class Ran:
    """`steps`: how many of each kind and bucket, by what the rounds were for; `reached`: their kinds and buckets; `missed`: rounds
    without the step that they are for."""

    requests: list
    steps: dict
    reached: set
    missed: list


def plan(buckets, options, vocabulary, draw):
    """The rounds. Ahead of many prompts go some that each fill a step, so that the many have come when theirs is composed."""
    prompt = lambda tokens: [1] + torch.randint(8, vocabulary, (tokens - 1,), generator=draw).tolist()
    prompts = lambda count, tokens: [prompt(tokens) for _ in range(count)]
    rounds = []
    for rows in buckets["mixed"]:
        for tokens in (rows, rows // 2 + 1) * max(1, min(ALONE, MOST_ALONE // rows)):
            rounds.append(Round(("mixed", rows), False, [prompt(min(tokens, options.step_tokens))], 1))
        count = min(rows // SHORT, options.max_seqs - 1)
        if rows < 2 * SHORT * count:
            ahead = prompts(2 + count // AHEAD, options.step_tokens)
            rounds.append(Round(("mixed", rows), True, prompts(count, SHORT), 1, ahead))
    for rows in buckets["decode"]:
        for _ in range(-(-LEAST_NEW // (rows * NEW))):
            ahead = prompts(rows // AHEAD, options.step_tokens)
            rounds.append(Round(("decode", rows), rows > 1, prompts(rows, SHORT), NEW, ahead))
    return rounds


def ask(command, rounds, work, buckets):
    """Runs the rounds in one process of `command`."""
    record, errors = work / "record.jsonl", work / "generate.err"
    record.unlink(missing_ok=True)
    largest = buckets["mixed"][-1]
    longest = max(len(prompt) + new for round in rounds for _, prompt, new in round.all(largest))
    command = [*command, "--max-context", str(longest), "--ignore-eos", "--input", "-", "--record", str(record), "-q"]
    requests = []
    with errors.open("w") as printed, subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=printed, text=True
    ) as program:
        for round in rounds:
            rows = []
            for name, prompt, new in round.all(largest):
                number = len(requests)
                # By turns: sampled, greedy without logprobs, which then may have a penalty, sampled, greedy.
                request = Asked(name, number, prompt, number % 2 == 1, PENALTY if number % 8 == 5 else 1.0)
                requests.append(request)
                row = {"id": str(number), "input_ids": prompt, "max_new_tokens": new, "temperature": float(not request.greedy)}
                row |= {"repetition_penalty": request.penalty}
                rows.append(json.dumps(row | ({} if number % 4 == 1 else {"logprobs": TOP})) + "\n")
            # By a thread: the program may have answers to write before it reads on.
            writer = threading.Thread(target=write, args=(program.stdin, rows))
            writer.start()
            answers = [program.stdout.readline() for _ in rows]
            writer.join()
            if not all(answers):
                break
        write(program.stdin, None)
        program.stdout.read()
    if program.returncode != 0 or not all(answers):
        sys.exit(f"families: {' '.join(command)}: exit code {program.returncode}: {errors.read_text()}")
    return read(record, rounds, requests, buckets)


def write(pipe, rows):
    """Writes the rows, or closes the pipe where there are none."""
    try:
        if rows is None:
            pipe.close()
        else:
            pipe.write("".join(rows))
            pipe.flush()
    except OSError:
        pass  # The program has ended, and its exit code says why.


def read(record, rounds, requests, buckets):
    seen, tokens, turns, ladders = 0, [[] for _ in requests], [], None
    for line in map(json.loads, record.open()):
        if "header" in line:
            ladders = line["header"]["engine"]["ladders"]
        elif "request" in line:
            assert line["request"]["prompt"] == requests[seen].prompt, f"request {seen} is not the row of its number"
            seen += 1
        elif "token" in line:
            tokens[line["token"]["request"]].append(line["token"])
        elif "turn" in line and line["turn"]["action"] == COMPOSED and line["turn"]["rows"]:
            turns.append(line["turn"])
    assert seen == len(requests), f"{seen} requests, expected {len(requests)}"
    for kind in ("decode", "mixed"):
        assert ladders[kind] == buckets[kind], f"{kind} steps ran in buckets {ladders[kind]}, expected {buckets[kind]}"
    for request, told in zip(requests, tokens):
        take(request, told)
    ends, new = [], 0
    for round in rounds:
        for _, _, wanted in round.all(buckets["mixed"][-1]):
            assert len(requests[new].tokens) == wanted, f"request {new}: {len(requests[new].tokens)} tokens, expected {wanted}"
            new += 1
        ends.append(new)
    steps, met = {}, [False] * len(rounds)
    for turn in turns:
        number = bisect.bisect_left(ends, turn["request_head"])
        round, kind = rounds[number], KINDS[turn["kind"]]
        rows = ladders[kind][turn["bucket"]]
        steps.setdefault(round.name(), Counter())[place(kind, rows)] += 1
        met[number] |= (kind, rows) == round.wanted and (turn["sequences"] > 1 or not round.many)
    missed = sorted({round.name() + (" of many" if round.many else "") for round, found in zip(rounds, met) if not found})
    reached = {step for of_round in steps.values() for step in of_round}
    return Ran(requests, {name: dict(of_round) for name, of_round in steps.items()}, reached, missed)


def take(request, told):
    """The request's tokens and their logprobs, which a recording has as the bits of an f32."""
    assert [token["index"] for token in told] == list(range(len(told))), f"tokens of request {request.number}"
    floats = lambda bits: torch.from_numpy(numpy.array(bits, dtype=numpy.uint32).view(numpy.float32))
    request.tokens = [token["token"] for token in told]
    request.chances = torch.full((len(told),), torch.nan)
    if all(token.get("logprobs") for token in told):
        request.chances = floats([token["logprobs"]["own"] for token in told])
        best = [token["logprobs"]["top"] for token in told]
        request.best_ids = torch.tensor([[id for id, _ in of_token] for of_token in best])
        request.best = floats([[bits for _, bits in of_token] for of_token in best])
