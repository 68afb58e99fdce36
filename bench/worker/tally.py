"""The memory pass: an exact tally of live tensor storages at operator boundaries, by category.

Works on any device, fake tensors included, since it looks at storages and not at an allocator. What a
kernel allocates inside one operator is not seen.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from bench.records.memory import HOST, TallyPhase

CATEGORIES = (
    "weights", "gradients", "master_weights", "optimizer_state", "activations", "logits", "gathered",
    "buckets", "batch", "temporaries", "other", HOST,
)  # fmt: skip
_BY_PHASE = {"forward": "activations", "backward": "temporaries", "step": "temporaries", "steady": "other"}


class Tally(TorchDispatchMode):
    """Counts bytes of live storages and keeps the split at the highest point of each phase."""

    def __init__(self, device_type: str, vocab: int) -> None:
        super().__init__()
        self.device_type, self.vocab = device_type, vocab
        self.phases: dict[str, TallyPhase] = {}
        self._live: Counter[str] = Counter()
        self._total = 0
        self._known: dict[int, list] = {}
        """Storage address → [bytes, category, weak reference]."""
        self._phase, self._context = "steady", None
        self._undo: list[Callable[[], None]] = []

    def add(self, tensor: torch.Tensor, category: str) -> None:
        """Count a tensor's storage once, or move it to a better-known category."""
        if tensor.device.type != self.device_type:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        entry = self._known.get(key)
        if entry is not None:
            self._move(entry, size, category)
            return
        if size == 0:
            return
        forget = weakref.ref(storage, lambda _, key=key: self._forget(key))
        self._known[key] = [size, category, forget]
        self._count(category, size)
        self._note_peak()

    def _move(self, entry: list, size: int, category: str) -> None:
        """A storage was resized, or turned out to be something else."""
        self._count(entry[1], -entry[0])
        self._count(category, size)
        entry[:2] = size, category

    def _forget(self, key: int) -> None:
        size, category, _ = self._known.pop(key)
        self._count(category, -size)

    def _count(self, category: str, size: int) -> None:
        self._live[category] += size
        if category != HOST:
            self._total += size

    def _note_peak(self) -> None:
        phase = self.phases.get(self._phase)
        if phase is None or self._total > phase.peak_bytes:
            self.phases[self._phase] = TallyPhase(peak_bytes=self._total, by_category=self._split())

    def _split(self) -> dict[str, int]:
        return {name: self._live[name] for name in CATEGORIES if self._live[name]}

    def begin(self, roles: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Count everything that is alive: what the engine names first, then whatever else Python knows."""
        for category, tensor in roles:
            if tensor.untyped_storage()._cdata not in self._known:
                self.add(tensor, category)
        for item in gc.get_objects():
            # By type: isinstance would wake lazy objects that merely look like something else.
            if not issubclass(type(item), torch.Tensor) or item.is_meta:
                continue
            if item.untyped_storage()._cdata not in self._known:
                self.add(item, "other")
        self.phases.clear()
        self._note_peak()

    def mark(self, phase: str) -> None:
        """A phase begins; what lives at this moment already counts for it."""
        self._phase = phase
        self._note_peak()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for item in tree_iter(out):
            if isinstance(item, torch.Tensor) and item.device.type == self.device_type:
                storage = item.untyped_storage()
                entry = self._known.get(storage._cdata)
                if entry is None:
                    self.add(item, self._category(item))
                elif entry[0] != storage.nbytes():
                    self._move(entry, storage.nbytes(), entry[1])
                    self._note_peak()
        return out

    def _category(self, tensor: torch.Tensor) -> str:
        if self._context is not None:
            return self._context
        if self._phase in ("forward", "backward") and tensor.dim() >= 2 and tensor.shape[-1] == self.vocab:
            return "logits"
        if self._phase == "backward" and torch.is_grad_enabled():
            return "activations"  # checkpointing runs a block again; the backward pass itself records no graph
        return _BY_PHASE[self._phase]

    def attribute(self, owner: Any, method: str, category: str) -> None:
        """Attribute what a method makes to a category, for as long as the pass lasts."""
        original = getattr(owner, method, None)
        if original is None:  # private to a library: without it the bytes count as activations or temporaries
            return

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self._within(category):
                return original(*args, **kwargs)

        setattr(owner, method, wrapped)
        self._undo.append(lambda: setattr(owner, method, original))

    @contextmanager
    def _within(self, category: str | None) -> Iterator[None]:
        before, self._context = self._context, category
        try:
            yield
        finally:
            self._context = before

    def watch(self, model: torch.nn.Module) -> None:
        """Learn of gradients as they are accumulated."""
        for parameter in model.parameters():
            if parameter.requires_grad and hasattr(parameter, "register_post_accumulate_grad_hook"):
                handle = parameter.register_post_accumulate_grad_hook(self._see_gradient)
                self._undo.append(handle.remove)

    def _see_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is None:
            return
        entry = self._known.get(parameter.grad.untyped_storage()._cdata)
        if entry is None or entry[1] != "buckets":  # ZeRO may have made it a view of a bucket
            self.add(parameter.grad, "gradients")

    def end(self) -> None:
        """Remove every hook and wrapper."""
        while self._undo:
            self._undo.pop()()
