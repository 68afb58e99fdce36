"""Passing hidden states from stage to stage. All stages know the micro-batch, and so every shape."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from bench.worker.device import DTYPES
from bench.worker.parallel.mesh import Mesh


class Relay:
    """The links of one stage to the one before and the one after it."""

    def __init__(self, mesh: Mesh, hidden: int, precision: str, device: torch.device) -> None:
        self.stage, self.last = mesh.coordinates["pp"], mesh.sizes["pp"] - 1
        self._before = mesh.rank_at(pp=self.stage - 1) if self.stage else None
        self._after = mesh.rank_at(pp=self.stage + 1) if self.stage < self.last else None
        self._hidden, self._dtype, self._device = hidden, DTYPES[precision], device

    def _blank(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(*like.shape, self._hidden, dtype=self._dtype, device=self._device)

    def _exchange(self, peer: int | None, out: torch.Tensor | None, into: torch.Tensor | None) -> None:
        """Send and receive at once: one after the other, two NCCL stages could wait for each other."""
        if peer is None:
            return
        operations = [dist.P2POp(dist.isend, out.contiguous(), peer)] if out is not None else []
        operations += [dist.P2POp(dist.irecv, into, peer)] if into is not None else []
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def with_before(self, gradient: torch.Tensor | None, next_ids: torch.Tensor | None) -> torch.Tensor | None:
        """Give a gradient to the stage before and take hidden states from it, either or both.

        Returns:
            What this stage's forward pass starts from: on the first stage the token ids themselves.
        """
        if self._before is None or next_ids is None:
            self._exchange(self._before, gradient, None)
            return next_ids
        states = self._blank(next_ids)
        self._exchange(self._before, gradient, states)
        return states

    def with_after(self, states: torch.Tensor | None, ids: torch.Tensor | None) -> torch.Tensor | None:
        """Give hidden states to the stage after and take the gradient of an earlier micro-batch from it.

        Args:
            states: to give, or None.
            ids: token ids of the micro-batch whose gradient is awaited, or None.
        """
        gradient = self._blank(ids) if ids is not None and self._after is not None else None
        self._exchange(self._after, states, gradient)
        return gradient

    def forward(self, run: Callable[[torch.Tensor], torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
        """One forward pass through all stages; logits on the last stage, hidden states elsewhere."""
        out = run(self.with_before(None, ids))
        self.with_after(out, None)
        return out
