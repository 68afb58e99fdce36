"""How much of the model ZeRO-3 has gathered at each moment, by following DeepSpeed's own rules.

DeepSpeed 0.19's parameter coordinator fetches a module's parameters when it is entered, then prefetches
those that come next in the recorded trace until a bucket is full, and releases a module's parameters when it is
left unless they are needed again within the reuse distance. Several parameters that are gathered
together arrive in one flat buffer and are copied out of it; the buffer lives until the last of them is used.
A plain linear layer saves a view of its weight for the backward pass (`weight.t()`), so that the gathered values
stay in memory although the parameter was released; gathered again, they exist twice.
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
    inside: int
    """In the last block's MLP, forward."""
    loss: int
    """When the logits exist, in forward and at the start of backward."""
    head: int
    """When the gradient of the head is made."""
    block: int
    """At the widest moment of a block's backward pass."""
    first: int
    """The same in the first block, the last to run backward."""


@dataclass(frozen=True)
class _Step:
    """A module is entered (fetch) or left (release)."""

    enter: bool
    parameters: tuple[int, ...]
    moment: str = ""
    saved: int = 0
    """1: its products are saved for the backward pass; −1: they are used up."""
    also: tuple[int, ...] = ()
    """Left with it, needed again or not: the frozen parameters that checkpointing has gathered for it."""


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
    """Groups that arrived: several parameters have copies of their own."""
    saved: dict[int, bool] = field(default_factory=dict)
    """Parameters whose values the graph holds: whether these are the parameter's own, or only the graph's."""
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
        if group not in self.copied:
            self.copied.add(group)
            self.available.update(members)
            if len(members) > 1:
                self._hold(sum(self.sizes[p] for p in members))
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

    def release(self, module: tuple[int, ...], also: tuple[int, ...]) -> None:
        """Leave a module."""
        leaving = {p for p in module if not self.persistent[p] and self.recent.get(p, -1) <= self.step}
        passed = 0
        for later in self.order[self.step :] if leaving else ():
            if passed >= self.reuse:
                break
            leaving.difference_update(later)
            passed += sum(self.sizes[p] for p in later)
        leaving.update(p for p in also if not self.persistent[p])
        for parameter in leaving & self.available:
            self.available.discard(parameter)
            self.live -= self.sizes[parameter]
            if self.saved.get(parameter):
                self.saved[parameter] = False
            else:
                self.held -= self.sizes[parameter]

    def save(self, module: tuple[int, ...]) -> None:
        """The graph takes hold of a linear layer's values."""
        self.saved.update(dict.fromkeys((p for p in module if not self.persistent[p]), True))

    def use_up(self, module: tuple[int, ...]) -> None:
        """The graph lets go of them."""
        for parameter in module:
            if self.saved.pop(parameter, True) is False:
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
    peaks = dict.fromkeys(("forward", "inside", "loss", "head", "block", "first"), 0)
    for step in steps:
        matrices = tuple(p for p in step.parameters if parameters[p].matrix)
        if step.saved == -1:
            coordinator.use_up(matrices)
        if step.enter:
            coordinator.fetch(step.parameters)
        else:
            coordinator.release(step.parameters, step.also)
        if step.saved == 1:
            coordinator.save(matrices)
        if step.moment:
            at_once = step.moment in ("loss", "head")
            peaks[step.moment] = max(peaks[step.moment], coordinator.held if at_once else coordinator.most)
        coordinator.most = coordinator.held
    peaks["block"] = max(peaks["block"], peaks["first"])
    peaks["forward"] = max(peaks["forward"], peaks["inside"])
    if not (job.gradient_checkpointing or job.zero.efficient_linear):
        left_out = (stage.layers - replayed.layers) * sum(p.numel for p in block_parameters(job) if p.matrix)
        peaks = {at: peak + left_out * (at != "first") for at, peak in peaks.items()}
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
    saving = not job.zero.efficient_linear
    graph = saving and not job.gradient_checkpointing
    steps = [_Step(True, ()), _Step(True, ())]
    steps += _visit(embed, "forward") + _visit((), "")
    for number, block in enumerate(blocks, 1):
        steps += _forward(block, "inside" if number == len(blocks) else "forward", graph)
    steps += [*_visit(norm, ""), _Step(True, last, "forward", saved=int(saving)), _Step(False, last, "loss")]
    steps += [_Step(True, ()), _Step(True, last, "head"), _Step(False, last, saved=-int(saving)), _Step(True, ())]
    steps += _visit(norm, "")
    for number in reversed(range(len(blocks))):
        steps += _backward(blocks[number], job.gradient_checkpointing, saving, "block" if number else "first")
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
_MLP = ("gate_proj", "up_proj", "down_proj")


def _forward(block: dict[str, list[tuple[int, ...]]], moment: str, saving: bool) -> Iterator[_Step]:
    for name in _FORWARD:
        leaves = block.get(name, [()] if name == "*" else [])
        if len(leaves) > 1:
            yield _Step(True, ())  # PEFT's wrapper around layer and adapters
        at = "forward" if moment == "inside" and name not in _MLP else moment
        for leaf in leaves:
            yield from (_Step(True, leaf, at, saved=int(saving)), _Step(False, leaf, at))


def _backward(
    block: dict[str, list[tuple[int, ...]]], checkpointing: bool, saving: bool, moment: str
) -> Iterator[_Step]:
    """Checkpointing recomputes the block when its last layer's gradient first needs a kept tensor.

    It calls the block's `forward`, not the block, and stops inside the last layer, once its input is there.
    """
    order = [name for name in reversed(_FORWARD) if name == "*" or name in block]
    adapted = any(len(leaves) > 1 for leaves in block.values())
    frozen = tuple(p for leaves in block.values() for p in leaves[0]) if adapted and checkpointing else ()
    yield from (_Step(True, ()), _Step(True, ()))
    for position, name in enumerate(order):
        leaves = list(reversed(block.get(name, [()])))
        at = moment if name in _MLP else ""
        for leaf in leaves:
            yield _Step(True, leaf, at)
            first = position == 0 and leaf is leaves[0]
            if checkpointing and first:
                yield from list(_forward(block, "", saving))[2:-1]
            yield _Step(False, leaf, at, saved=-int(saving), also=frozen if first else ())


def _visit(leaf: tuple[int, ...], moment: str) -> list[_Step]:
    return [_Step(True, leaf, moment), _Step(False, leaf)]
