"""Hugging Face transformers as the reference for tests/gpu/oracle.py: a checkpoint on one device, first in bf16, then
in f32 without TF32, and the routing decisions that it takes on the way.

bf16 values are exact in f32, so the f32 model is the bf16 one with wider parameters: the checkpoint is read once.
"""

import importlib.util
import time

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

# Routing scores lie between 0 and 1. Where the last expert chosen and the first one left out are closer than this, f32
# noise decides between them. tests/gpu/oracle.py measures that noise and shows it beside this: at full size margins of
# transformers move by up to 2.2e-5 between two batch sizes, and ours may move the other way.
NEAR_TIE = 5e-5
# Decisions of one prompt that explain() turns round, at most.
MOST_TURNED = 8
# Sets of decisions that explain() goes on from, and how many it tries at once.
KEPT = 6
TRIED_AT_ONCE = 64


class Reference:
    """`turned` are routing decisions to take the other way: a set of (layer, row), rows counted over the whole batch."""

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
        self.turned = frozenset()
        for layer, gate in self.gates.items():
            gate.register_forward_hook(lambda gate, inputs, output, layer=layer: self._routed(layer, gate, inputs, output))
        self.load_s = time.perf_counter() - start

    def widen(self):
        """From bf16 to f32."""
        self.model.float()

    @torch.inference_mode()
    def logits(self, tokens, last=False):
        """[N, T, V] of tokens [N, T], or [N, V] of the last position alone, f32."""
        kernels = [SDPBackend.MATH] if self.model.dtype == torch.float32 else list(SDPBackend.__members__.values())
        with sdpa_kernel([kernel for kernel in kernels if kernel != SDPBackend.ERROR]):
            found = self.model(tokens.to(self.device), use_cache=False, logits_to_keep=1 if last else 0).logits
        return found[:, -1].float() if last else found.float()

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
        if self.margins is None and self.hits is None and not self.turned:
            return None
        logits, weights, chosen = output
        if self.hits is not None:
            counts = torch.bincount(chosen.flatten(), minlength=gate.num_experts)
            self.hits[layer] = self.hits.get(layer, 0) + counts
        scores = logits.float().sigmoid()
        biased = scores + inputs[1] if gate.use_expert_bias else scores
        ranked = biased.topk(gate.top_k + 1, dim=-1)
        if self.margins is not None:
            self.margins[layer] = ranked.values[:, gate.top_k - 1] - ranked.values[:, gate.top_k]
        rows = [row for at, row in self.turned if at == layer]
        if not rows:
            return None
        chosen = ranked.indices[:, : gate.top_k].clone()
        chosen[rows, gate.top_k - 1] = ranked.indices[rows, gate.top_k]
        weights = scores.gather(1, chosen)
        if gate.norm_topk_prob:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-6)
        return logits, weights * gate.routed_scaling_factor, chosen

    def explain(self, tokens, distance, tolerance):
        """Looks for near-tied routing decisions of the prompt `tokens` [T] which, taken the other way, lead to last logits
        [V] whose `distance` is within `tolerance`. Decisions come one by one, and of what they lead to the KEPT nearest are
        gone on from: one that is taken late hides what an earlier one did.

        Returns the decisions as [(layer, position, margin)], the distance that is left, and the logits.
        """
        best = self._follow(tokens, distance, [()])[0]
        frontier = [best]
        while best[0] > tolerance and frontier and len(frontier[0][1]) < MOST_TURNED:
            sets, paths = set(), []
            for _, taken, _ in frontier:
                for tie in self._near_ties(tokens, taken)[:TRIED_AT_ONCE]:
                    # Later decisions follow from earlier ones, so they count as they were when they were turned.
                    path = (*taken, tie)
                    places = frozenset(place[:2] for place in path)
                    if places not in sets:
                        sets.add(places)
                        paths.append(path)
            frontier = sorted(self._follow(tokens, distance, paths), key=lambda one: one[0])[:KEPT]
            if frontier and frontier[0][0] < best[0]:
                best = frontier[0]
        left, taken, logits = best
        return list(taken), left, logits.cpu()

    def _near_ties(self, tokens, taken):
        """Routing decisions that are near ties once those in `taken` are turned round, nearest first."""
        turned = frozenset(place[:2] for place in taken)
        self.turned, self.margins = turned, {}
        self.logits(tokens[None], last=True)
        margins, self.margins, self.turned = self.margins, None, frozenset()
        return [
            (layer, position, margin)
            for margin, layer, position in sorted(
                (float(margin[position]), layer, int(position))
                for layer, margin in margins.items()
                for position in (margin <= NEAR_TIE).nonzero().flatten()
                if (layer, int(position)) not in turned
            )
        ]

    def _follow(self, tokens, distance, paths):
        """(distance, path, logits) of each path of decisions to turn round, TRIED_AT_ONCE of them as one batch."""
        length, found = len(tokens), []
        for first in range(0, len(paths), TRIED_AT_ONCE):
            some = paths[first : first + TRIED_AT_ONCE]
            self.turned = frozenset(
                (layer, item * length + position) for item, path in enumerate(some) for layer, position, _ in path
            )
            tried = self.logits(tokens[None].expand(len(some), length), last=True)
            found += [(distance(logits), path, logits) for path, logits in zip(some, tried)]
        self.turned = frozenset()
        return found


def relative(found, expected):
    """Norm of the differences over the norm of what was expected."""
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm())
