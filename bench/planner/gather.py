"""How much of the model ZeRO-3 has gathered at each moment, by following DeepSpeed's own rules.

DeepSpeed 0.19's parameter coordinator fetches a module's parameters when it is entered, then prefetches
those that come next in the recorded trace until a bucket is full, and releases a module's parameters when it is
left unless they are needed again within the reuse distance. Several parameters that are gathered
together arrive in one flat buffer and are copied out of it; the buffer lives until the last of them is used.
The rules are in `deepspeed/runtime/zero/partitioned_param_coordinator.py`; this replays them on sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from bench.planner.job import Job
from bench.planner.parameters import Parameter, Stage, block_parameters, embedding, head

_MOST_BLOCKS = 12
"""Blocks that are replayed: more than the reuse distance and the prefetch window of any real model reach
across, and all of a smaller one."""


@dataclass(frozen=True)
class Gathered:
    """Most elements gathered on a rank at the moments that can hold the peak."""

    forward: int
    loss: int
    """When the logits exist, in forward and at the start of backward."""
    head: int
    """When the gradient of the head is made."""
    block: int
    """At the widest moment of a block's backward pass."""


@dataclass(frozen=True)
class _Step:
    """A module is entered (fetch) or left (release)."""

    enter: bool
    parameters: tuple[int, ...]
    moment: str = ""


@dataclass
class _Coordinator:
    """The state of the replay; see the module's docstring."""

    sizes: list[int]
    persistent: list[bool]
    max_live: int
    prefetch: int
    reuse: int
    order: list[tuple[int, ...]]
    """Parameters of each module entered, in the order of a whole step."""
    step: int = 0
    queue: list[tuple[int, int]] = field(default_factory=list)
    head_of_queue: int = 0
    available: set[int] = field(default_factory=set)
    inflight: dict[int, int] = field(default_factory=dict)
    """Parameter → its group."""
    groups: dict[int, list[int]] = field(default_factory=dict)
    copied: set[int] = field(default_factory=set)
    """Groups that arrived: their parameters have copies of their own."""
    recent: dict[int, int] = field(default_factory=dict)
    live: int = 0
    held: int = 0
    most: int = 0
    """Highest `held` since the last look."""

    def __post_init__(self) -> None:
        self.queue = [(p, step) for step, module in enumerate(self.order) for p in module]

    def _gather(self, wanted: list[int]) -> None:
        if not wanted:
            return
        group = len(self.groups)
        self.groups[group] = list(wanted)
        total = sum(self.sizes[p] for p in wanted)
        self.live += total
        self._hold(total)
        self.inflight.update(dict.fromkeys(wanted, group))

    def _hold(self, elements: int) -> None:
        self.held += elements
        self.most = max(self.most, self.held)

    def _wait(self, parameter: int) -> None:
        group = self.inflight.pop(parameter)
        members = self.groups[group]
        if len(members) > 1 and group not in self.copied:
            self.copied.add(group)
            self._hold(sum(self.sizes[p] for p in members))
        self.available.update(members)
        if len(members) > 1 and not any(self.inflight.get(p) == group for p in members):
            self.held -= sum(self.sizes[p] for p in members)

    def fetch(self, module: tuple[int, ...]) -> None:
        """Enter a module."""
        needed = [p for p in module if not self.persistent[p]]
        self._gather([p for p in needed if p not in self.available and p not in self.inflight])
        for parameter in needed:
            if parameter in self.inflight:
                self._wait(parameter)
        late = sum(self.recent.get(p, -1) < self.step for p in module)
        for parameter, step in self.queue[self.head_of_queue : self.head_of_queue + late]:
            self.recent[parameter] = step
        self.head_of_queue += late
        self._prefetch()
        self.step += 1

    def _prefetch(self) -> None:
        room = min(self.max_live - self.live, self.prefetch)
        chosen: list[int] = []
        numel = 0
        while self.head_of_queue < len(self.queue) and numel < room:
            parameter, step = self.queue[self.head_of_queue]
            self.head_of_queue += 1
            self.recent[parameter] = max(self.recent.get(parameter, -1), step)
            absent = parameter not in self.available and parameter not in self.inflight
            if absent and not self.persistent[parameter] and parameter not in chosen:
                chosen.append(parameter)
                numel += self.sizes[parameter]
        self._gather(chosen)

    def release(self, module: tuple[int, ...]) -> None:
        """Leave a module."""
        leaving = {p for p in module if not self.persistent[p] and self.recent.get(p, -1) <= self.step}
        passed = 0
        for later in self.order[self.step :] if leaving else ():
            if passed >= self.reuse:
                break
            leaving.difference_update(later)
            passed += sum(self.sizes[p] for p in later)
        for parameter in leaving & self.available:
            self.available.discard(parameter)
            self.live -= self.sizes[parameter]
            self.held -= self.sizes[parameter]


def gathered(job: Job, stage: Stage) -> Gathered:
    """Replay one step of a stage under ZeRO-3 and note the most elements gathered at each moment."""
    return _replay(job.layout, stage)


@cache
def _replay(job: Job, stage: Stage) -> Gathered:
    threshold = job.zero.persistence_threshold
    replayed = replace(stage, layers=min(stage.layers, _MOST_BLOCKS))
    parameters, steps = _trace(job, replayed)
    coordinator = _Coordinator(
        sizes=[p.numel for p in parameters], persistent=[p.numel <= threshold for p in parameters],
        max_live=job.zero.max_live, prefetch=job.zero.prefetch_bucket, reuse=job.zero.max_reuse_distance,
        order=[s.parameters for s in steps if s.enter],
    )  # fmt: skip
    peaks = dict.fromkeys(("forward", "loss", "head", "block"), 0)
    for step in steps:
        (coordinator.fetch if step.enter else coordinator.release)(step.parameters)
        if step.moment:
            seen = coordinator.most if step.moment in ("forward", "block") else coordinator.held
            peaks[step.moment] = max(peaks[step.moment], seen)
        coordinator.most = coordinator.held
    return Gathered(**peaks)


def persistent_elements(job: Job, parameters: tuple[Parameter, ...]) -> int:
    """Elements of parameters below the threshold, which stay whole on every rank."""
    return sum(p.numel for p in parameters if p.numel <= job.zero.persistence_threshold)


def _trace(job: Job, stage: Stage) -> tuple[list[Parameter], list[_Step]]:
    """Parameters and the enter/leave steps of forward and backward, containers without parameters included."""
    parameters: list[Parameter] = []

    def register(items: tuple[Parameter, ...]) -> tuple[int, ...]:
        parameters.extend(items)
        return tuple(range(len(parameters) - len(items), len(parameters)))

    embed = register((embedding(job),)) if stage.first else ()
    blocks = [_modules(job, register) for _ in range(stage.layers)]
    norm = register((Parameter("norm", job.shape.hidden, not job.lora, False),)) if stage.last else ()
    tied = job.shape.tied and stage.first
    last = (embed if tied else register((head(job),))) if stage.last else ()
    steps = [_Step(True, ()), _Step(True, ())]
    steps += _visit(embed, "forward") + _visit((), "")
    for block in blocks:
        steps += _forward(block, "forward")
    steps += [*_visit(norm, ""), _Step(True, last, "forward"), _Step(False, last, "loss")]
    steps += [_Step(True, ()), _Step(True, last, "head"), _Step(False, last), _Step(True, ())]
    steps += _visit(norm, "")
    for block in reversed(blocks):
        steps += _backward(block, job.gradient_checkpointing)
    steps += _visit(embed, "") if not job.lora else []
    return parameters, steps


def _modules(job: Job, register: object) -> dict[str, list[tuple[int, ...]]]:
    """Leaf modules of a block in forward order: each layer's weights, then its adapters one by one."""
    by_name: dict[str, list[tuple[int, ...]]] = {}
    grouped: dict[str, list[Parameter]] = {}
    for parameter in block_parameters(job):
        grouped.setdefault(parameter.module, []).append(parameter)
    for name, items in grouped.items():
        base = register(tuple(p for p in items if not p.adapter))
        by_name[name] = [base] + [register((p,)) for p in items if p.adapter]
    return by_name


_FORWARD = ("*", "input_norm", "*", "q_proj", "q_norm", "k_proj", "k_norm", "v_proj", "o_proj", "post_norm", "*",
            "gate_proj", "*", "up_proj", "down_proj")  # fmt: skip
"""Order of a block's modules; * is a container or an activation, which has no parameters but is entered too."""


def _forward(block: dict[str, list[tuple[int, ...]]], moment: str) -> Iterator[_Step]:
    for name in _FORWARD:
        leaves = block.get(name, [()] if name == "*" else [])
        if len(leaves) > 1:
            yield _Step(True, ())  # PEFT's wrapper around layer and adapters
        for leaf in leaves:
            yield from _visit(leaf, moment)


def _backward(block: dict[str, list[tuple[int, ...]]], checkpointing: bool) -> Iterator[_Step]:
    """Checkpointing recomputes the block when its last layer's gradient first needs a kept tensor."""
    order = [name for name in reversed(_FORWARD) if name == "*" or name in block]
    yield from (_Step(True, ()), _Step(True, ()))
    for position, name in enumerate(order):
        leaves = list(reversed(block.get(name, [()])))
        moment = "block" if name in ("up_proj", "down_proj", "gate_proj") else ""
        for leaf in leaves:
            yield _Step(True, leaf, moment)
            if checkpointing and position == 0 and leaf is leaves[0]:
                yield from _forward(block, "")
            yield _Step(False, leaf)


def _visit(leaf: tuple[int, ...], moment: str) -> list[_Step]:
    return [_Step(True, leaf, moment), _Step(False, leaf)]
