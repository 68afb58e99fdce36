"""Cutting a causal language model into pipeline stages.

A stage keeps the Hugging Face model with the parts it does not own taken out, so that its parameters
keep their names, and runs embedding, its blocks, norm and head by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import nn

from bench.worker.parallel.mesh import Mesh

_LAYER = re.compile(r"\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Cut:
    """Which blocks each stage holds; the embedding is with the first, norm and head with the last."""

    bounds: tuple[int, ...]
    """Stage s holds the blocks bounds[s] to bounds[s + 1] − 1."""

    @classmethod
    def even(cls, layers: int, stages: int) -> Cut:
        """As even as can be; earlier stages take the remainder, as the planner has it: the last one has the head."""
        small, extra = divmod(layers, stages)
        bounds = [0]
        for stage in range(stages):
            bounds.append(bounds[-1] + small + (stage < extra))
        return cls(tuple(bounds))

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.bounds) - 1

    def blocks(self, stage: int) -> range:
        """Block numbers of a stage."""
        return range(self.bounds[stage], self.bounds[stage + 1])

    def owner(self, name: str) -> int:
        """The stage that owns a parameter; a matrix tied to the embedding is the embedding's."""
        match = _LAYER.search(name)
        if match:
            return next(s for s in range(self.stages) if int(match.group(1)) in self.blocks(s))
        return 0 if "embed_tokens" in name else self.stages - 1


def keep_stage(causal_lm: nn.Module, cut: Cut, stage: int) -> None:
    """Take out what this stage does not own. Block numbers, and so names, stay as they are."""
    body, last = causal_lm.model, cut.stages - 1
    for number in range(len(body.layers)):
        if number not in cut.blocks(stage):
            body.layers[number] = nn.Identity()
    tied = causal_lm.lm_head.weight is body.embed_tokens.weight
    if stage != last:
        body.norm, causal_lm.lm_head = nn.Identity(), nn.Identity()
    if stage != 0 and not (tied and stage == last):
        body.embed_tokens = nn.Identity()


class Stage(nn.Module):
    """The forward pass of one stage: token ids into the first, logits out of the last, hidden states between."""

    def __init__(self, model: nn.Module, causal_lm: nn.Module, cut: Cut, mesh: Mesh) -> None:
        super().__init__()
        self.model = model
        """With its adapters: names and shapes of the parameters."""
        self.number, self.last = mesh.coordinates["pp"], cut.stages - 1
        self.blocks = cut.blocks(self.number)
        # Held in a list, so that its parameters are not registered a second time.
        self._inside = [causal_lm]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Run this stage.

        Right padding needs no mask: under the causal kernel no real position sees a later one.
        """
        causal_lm = self._inside[0]
        body = causal_lm.model
        hidden = body.embed_tokens(inputs) if self.number == 0 else inputs
        positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        rotary = body.rotary_emb(hidden, positions)
        for number in self.blocks:
            hidden = body.layers[number](
                hidden, attention_mask=None, position_ids=positions, position_embeddings=rotary, use_cache=False
            )
        return causal_lm.lm_head(body.norm(hidden)) if self.number == self.last else hidden

    @property
    def tied_copy(self) -> nn.Parameter | None:
        """The matrix that the first and the last of several stages both hold: embedding, and head tied to it."""
        causal_lm = self._inside[0]
        embedding = getattr(causal_lm.model.embed_tokens, "weight", None)
        ends_apart = self.last > 0 and self.number in (0, self.last)
        return embedding if ends_apart and causal_lm.config.tie_word_embeddings else None
