"""The fake world of a rehearsal. One process plays one rank once: nothing here is undone.

Everything private to torch, DeepSpeed and CPython that a rehearsal relies on is in this file.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import deepspeed
import deepspeed.ops
import torch
import torch.distributed as dist
from deepspeed.ops.op_builder import CPUAdamBuilder
from deepspeed.runtime.pipe.engine import PipelineEngine as DeepSpeedPipelineEngine
from deepspeed.runtime.zero import partitioned_param_coordinator
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import distributed as torch_ddp
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import masking_utils

from bench.spec.case import Case
from bench.worker import model as worker_model
from bench.worker.device import DTYPES


class FakeTensors(FakeTensorMode):
    """Fake tensors that answer when their value is asked for.

    A number is 1 (a gradient norm, a step count, a loss), a flag is unset and a count 0 (no overflow, ranks agree).
    """

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See FakeTensorMode."""
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if args[0].dtype.is_floating_point else 0
        return super().dispatch(func, types, args, kwargs)


def join_fake_world(rank: int, world_size: int) -> None:
    """Be one rank of a world without other processes."""
    own = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    os.environ.update({name: str(value) for name, value in own.items()})
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    deepspeed.init_distributed(dist_backend="fake", verbose=False)


def stand_in(case: Case, hidden: int) -> None:
    """Replace what needs values, other ranks, or a compiled operator.

    Args:
        case: the case that is rehearsed.
        hidden: width of the hidden states that pipeline stages pass on.
    """
    nn.Module._apply = lambda module, function, recurse=True: module  # everything is on its device already
    worker_model.draw_weights = lambda model, config, seed: None
    torch_ddp._verify_param_shape_across_processes = lambda group, tensors, logger=None: None
    torch_ddp._sync_module_states = lambda **options: None
    CPUAdamBuilder.load = lambda builder, verbose=True: SimpleNamespace(
        create_adam=_nothing, adam_update=_nothing, destroy_adam=_nothing
    )
    # Samples are not packed, which transformers would find out from their positions.
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    # A stage asks the one before for the shape of what comes.
    shape = (case.micro_batch_size, case.seq_len, hidden)
    DeepSpeedPipelineEngine._recv_tensor_meta = lambda engine, sender: engine._allocate_or_extend_buffers(
        0, shape, DTYPES[case.precision]
    )


def agree_on_traces() -> None:
    """ZeRO-3 compares its traces with other ranks, which are not there; to be called when the engine is made."""
    partitioned_param_coordinator.assert_ints_same_as_other_ranks = _nothing


def pretend_all_reduce(ddp: nn.parallel.DistributedDataParallel) -> None:
    """Let DDP take its own buckets for reduced, and keep them: the order of arrival is agreed upon with data."""

    def reduced(_, bucket):
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp.register_comm_hook(None, reduced)
    ddp.reducer = _FixedBuckets(ddp.reducer)


class _FixedBuckets:
    """DDP's reducer without the one rebuild of its buckets, which frees as much as it allocates."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


def watch_pinned() -> list[StorageWeakRef]:
    """A list that grows by what DeepSpeed pins: those tensors lie in host memory, a device of its own elsewhere."""
    accelerator = deepspeed.accelerator.get_accelerator()
    pin, pinned = accelerator.pin_memory, []

    def noted(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        out = pin(tensor, *arguments, **options)
        pinned.append(StorageWeakRef(out.untyped_storage()))
        return out

    accelerator.pin_memory = noted
    return pinned


def _nothing(*arguments: Any, **options: Any) -> None:
    """Stands in for code that would wait for others or compute."""
