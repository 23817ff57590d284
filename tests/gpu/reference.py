"""Hugging Face transformers as the reference for tests/gpu/oracle.py and families.py: a checkpoint on one device, first in bf16, then
in f32 without TF32, and the routing decisions that it takes on the way.

bf16 values are exact in f32, so the f32 model is the bf16 one with wider parameters: the checkpoint is read once.
"""

import contextlib
import importlib.util
import time
from dataclasses import dataclass

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

# Routing scores lie between 0 and 1. Where the last expert chosen and the first one left out are closer than this, f32
# noise decides between them. tests/gpu/oracle.py measures that noise and shows it beside this: at full size margins of
# transformers move by up to 2.2e-5 between two batch sizes, and ours may move the other way.
NEAR_TIE = 5e-5
# Decisions of one prompt that explain() turns round, at most.
MOST_TURNED = 8
# Paths that explain() goes on from, and how many it tries at once.
KEPT = 6
TRIED_AT_ONCE = 64
# Positions of a batch: f32 attention keeps the scores of all pairs.
MOST_ROWS = 8192


class Reference:
    """`forced` are routing decisions that are not the model's: {layer: {row: experts}}, rows counted over the whole batch."""

    def __init__(self, checkpoint, device):
        start = time.perf_counter()
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")
        # device_map needs accelerate; without it the weights go through host memory.
        direct = {"device_map": device} if importlib.util.find_spec("accelerate") else {}
        transformers.utils.logging.disable_progress_bar()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint,
            dtype=torch.bfloat16,
            attn_implementation="sdpa",
            experts_implementation="grouped_mm",
            **direct,
        ).to(device).eval()
        self.device = device
        for name, buffer in self.model.named_buffers():
            if "expert_bias" in name or "inv_freq" in name:
                assert buffer.dtype == torch.float32, f"{name}: {buffer.dtype}, expected float32"
        self.gates = {
            index: layer.feed_forward.gate
            for index, layer in enumerate(self.model.model.layers)
            if hasattr(layer.feed_forward, "gate")
        }
        self.margins = None
        self.hits = None
        self.ties = None
        self.forced = {}
        for layer, gate in self.gates.items():
            gate.register_forward_hook(lambda gate, inputs, output, layer=layer: self._routed(layer, gate, inputs, output))
        self.load_s = time.perf_counter() - start

    def widen(self):
        """From bf16 to f32."""
        self.model.float()

    def quantize_weights(self):
        """Projections become E4M3 with a scale for each output, in f32, as `--weights fp8` has them."""
        for name, weight in self.model.model.layers.named_parameters():
            if weight.dim() > 1 and not name.endswith(("gate.weight", "conv.conv.weight")):
                weight.data = e4m3(weight.data, weight.shape[-1])
        self.model.set_experts_implementation("eager")

    @contextlib.contextmanager
    def quantized_rows(self):
        """Within, what projections multiply is E4M3 with a scale for each 128 columns of a row."""
        plain = torch.nn.functional.linear
        as_they_are = [self.model.lm_head.weight, *(gate.weight for gate in self.gates.values())]

        def linear(rows, weight, bias=None):
            if any(weight is one for one in as_they_are):
                return plain(rows, weight, bias)
            return plain(e4m3(rows, 128), weight, bias)

        torch.nn.functional.linear = linear
        try:
            yield
        finally:
            torch.nn.functional.linear = plain

    def logits(self, tokens, last=False):
        """[N, T, V] of tokens [N, T], or [N, V] of the last position alone, f32."""
        found = self.tail(tokens, 1 if last else 0)
        return found[:, -1] if last else found

    @torch.inference_mode()
    def tail(self, tokens, positions):
        """[N, positions, V] of the last positions of tokens [N, T], f32; 0 are all positions."""
        kernels = [SDPBackend.MATH] if self.model.dtype == torch.float32 else list(SDPBackend.__members__.values())
        with sdpa_kernel([kernel for kernel in kernels if kernel != SDPBackend.ERROR]):
            return self.model(tokens.to(self.device), use_cache=False, logits_to_keep=positions).logits.float()

    def last_logits(self, tokens, batch):
        """[N, V] on the host, `batch` prompts at a time, and the routing margins of all decisions: {layer: [N, T]}."""
        logits, margins = [], {layer: [] for layer in self.gates}
        for part in tokens.split(batch):
            self.margins = {}
            logits.append(self.logits(part, last=True).cpu())
            for layer, margin in self.margins.items():
                margins[layer].append(margin.reshape(part.shape).cpu())
        self.margins = None
        return torch.cat(logits), {layer: torch.cat(parts) for layer, parts in margins.items()}

    def count_experts(self):
        """From here on, which experts are chosen how often: [E] by layer in `hits`."""
        self.hits = {}

    def _routed(self, layer, gate, inputs, output):
        forced = self.forced.get(layer)
        if self.margins is None and self.hits is None and self.ties is None and not forced:
            return None
        logits, weights, chosen = output
        if self.hits is not None:
            counts = torch.bincount(chosen.flatten(), minlength=gate.num_experts)
            self.hits[layer] = self.hits.get(layer, 0) + counts
        scores = logits.float().sigmoid()
        biased = scores + inputs[1] if gate.use_expert_bias else scores
        ranked = biased.topk(gate.top_k + 1, dim=-1)
        margins = ranked.values[:, gate.top_k - 1] - ranked.values[:, gate.top_k]
        if self.margins is not None:
            self.margins[layer] = margins
        if self.ties is not None:
            self.ties[layer] = [
                tie_of(layer, position, float(margins[position]), ranked.indices[position].tolist(), taken)
                for position in (margins <= NEAR_TIE).nonzero().flatten().tolist()
                for taken in [(forced or {}).get(position) or chosen[position].tolist()]
            ]
        if not forced:
            return None
        chosen = chosen.clone()
        chosen[list(forced)] = torch.tensor(list(forced.values()), dtype=chosen.dtype, device=chosen.device)
        weights = scores.gather(1, chosen)
        if gate.norm_topk_prob:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-6)
        return logits, weights * gate.routed_scaling_factor, chosen

    def explain(self, tokens, distance, tolerance):
        """Looks for near-tied routing decisions of the prompt `tokens` [T] which, taken the other way, lead to last logits
        [V] whose `distance` is within `tolerance`. Decisions are turned one by one, and the KEPT nearest of what that leads
        to are gone on from: one that is taken late hides what an earlier one did.

        Returns the decisions as [(layer, position, margin)], the distance that is left, and the logits.
        """
        start = self._alone(tokens, distance, Path({}, ()))
        best, kept, seen = start, [start], set()
        while best.left > tolerance and kept and len(kept[0].path.turned) < MOST_TURNED:
            paths = []
            for one in kept:
                for tie in one.ties[:TRIED_AT_ONCE]:
                    path = one.path.turn(tie, one.ties)
                    if path.key() not in seen:
                        seen.add(path.key())
                        paths.append(path)
            tried = sorted(self._together(tokens, distance, paths), key=lambda found: found[0])[:KEPT]
            kept = sorted((self._alone(tokens, distance, path) for _, path in tried), key=lambda one: one.left)
            best = min([best, *kept], key=lambda one: one.left)
        return [(tie.layer, tie.position, tie.margin) for tie in best.path.turned], best.left, best.logits.cpu()

    def _alone(self, tokens, distance, path):
        """What a path leads to in a batch of one, with the near ties on the way that it has not turned round."""
        self.forced, self.ties = {}, {}
        path.add_to(self.forced, 0)
        logits = self.logits(tokens[None], last=True)[0]
        ties, self.ties, self.forced = self.ties, None, {}
        turned = {(tie.layer, tie.position) for tie in path.turned}
        ties = [tie for of_layer in ties.values() for tie in of_layer if (tie.layer, tie.position) not in turned]
        return Found(path, distance(logits), logits, sorted(ties, key=lambda tie: tie.margin))

    def _together(self, tokens, distance, paths):
        """(distance, path) of each path, TRIED_AT_ONCE of them as one batch, or as many as have MOST_ROWS."""
        length, found = len(tokens), []
        at_once = min(TRIED_AT_ONCE, max(1, MOST_ROWS // length))
        for first in range(0, len(paths), at_once):
            some = paths[first : first + at_once]
            self.forced = {}
            for item, path in enumerate(some):
                path.add_to(self.forced, item * length)
            tried = self.logits(tokens[None].expand(len(some), length), last=True)
            found += [(distance(logits), path) for path, logits in zip(some, tried)]
        self.forced = {}
        return found


@dataclass(frozen=True)
class Tie:
    """A routing decision that noise may take either way: the experts as they were chosen, and the others."""

    layer: int
    position: int
    margin: float
    chosen: tuple
    otherwise: tuple


def tie_of(layer, position, margin, ranked, taken):
    """`ranked`: the best experts, one more than are chosen; `taken`: those that were, in any order. Of equal scores the two
    need not agree on which comes first."""
    kept = [expert for expert in ranked if expert in taken]
    left_out = next(expert for expert in ranked if expert not in taken)
    return Tie(layer, position, margin, tuple(taken), tuple(e for e in taken if e != kept[-1]) + (left_out,))


@dataclass(frozen=True)
class Path:
    """Decisions that are not left to noise: {(layer, position): experts}; of these, the ties that were turned round, in
    order."""

    forced: dict
    turned: tuple

    def turn(self, tie, ties):
        """One more tie turned round. Of the others, those that it cannot touch stay as they were found: those of layers
        up to its own, and of earlier positions."""
        kept = {(o.layer, o.position): o.chosen for o in ties if o.layer <= tie.layer or o.position < tie.position}
        return Path({**self.forced, **kept, (tie.layer, tie.position): tie.otherwise}, (*self.turned, tie))

    def key(self):
        return frozenset((place, frozenset(experts)) for place, experts in self.forced.items())

    def add_to(self, forced, first):
        """Adds them to `forced`, as `Reference` has it, for a prompt whose first row of a batch is `first`."""
        for (layer, position), experts in self.forced.items():
            forced.setdefault(layer, {})[first + position] = experts


@dataclass(frozen=True)
class Found:
    path: Path
    left: float
    logits: torch.Tensor
    ties: list


def e4m3(values, columns):
    """What is left of values whose every `columns` columns, a multiple of which there are, have a scale: the largest becomes 448."""
    blocks = values.unflatten(-1, (-1, columns))
    scales = blocks.abs().amax(-1, keepdim=True).clamp(min=2.0**-100) / 448
    return ((blocks / scales).to(torch.float8_e4m3fn).to(values.dtype) * scales).flatten(-2)


def relative(found, expected):
    """Norm of the differences over the norm of what was expected."""
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm())
