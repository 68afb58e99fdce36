"""Arithmetic of the mesh, the cut into stages and the pieces of sequences, without launching ranks."""

from __future__ import annotations

import pytest
import torch

from bench.spec.case import Case
from bench.worker.batches import micro_batch_indices
from bench.worker.data import IGNORE
from bench.worker.engines.sequence import SequenceEngine, targets
from bench.worker.parallel.mesh import Mesh, coordinates
from bench.worker.parallel.stage import Cut
from bench.worker.parallel.tensor import Shard

SIZES = {"dp": 2, "tp": 2, "pp": 2, "sp": 1}


def make(**fields: object) -> Case:
    base = {
        "id": "c", "model": "m", "data": "d.jsonl", "tuning": "full", "zero_stage": 1, "learning_rate": 1e-3,
        "steps": 3, "warmup_steps": 1, "global_batch_size": 16, "micro_batch_size": 2, "seq_len": 64,
    }  # fmt: skip
    return Case.model_validate(base | fields)


def test_every_rank_has_one_place_and_tensor_ranks_are_neighbours() -> None:
    places = [coordinates(rank, SIZES) for rank in range(8)]
    assert len({tuple(place.values()) for place in places}) == 8
    for rank, place in enumerate(places):
        mesh = Mesh(SIZES, place)
        assert mesh.rank_at() == rank
        assert mesh.rank_at(tp=0) // 2 == rank // 2
    assert sum(Mesh(SIZES, place).reports for place in places) == 2, "one rank speaks for each replica"


def test_ranks_of_one_replica_are_fed_the_same_samples_and_replicas_share_the_batch() -> None:
    case = make(tp_size=2, pp_size=2)
    assert case.accumulation_steps(8) == 4
    fed = {rank: micro_batch_indices(case, coordinates(rank, SIZES)["dp"], SIZES["dp"]) for rank in range(8)}
    for rank in range(8):
        same = Mesh(SIZES, coordinates(rank, SIZES)).rank_at(tp=0, pp=0)
        assert fed[rank] == fed[same]
    first = [position for micro_batch in fed[0] + fed[2] for position in micro_batch]
    assert sorted(first) == list(range(3 * 16)), "ranks 0 and 2 are the two replicas' first"


@pytest.mark.parametrize("size", [2, 3, 4])
def test_loss_tokens_over_all_sequence_pieces_sum_to_the_batch(size: int) -> None:
    labels = torch.randint(0, 50, (3, 13))
    labels[0, 9:] = labels[1, :4] = IGNORE
    pieces = [_piece(targets(labels), size, rank) for rank in range(size)]
    assert len({piece.shape for piece in pieces}) == 1
    assert sum(int((piece != IGNORE).sum()) for piece in pieces) == int((labels[:, 1:] != IGNORE).sum())
    assert torch.cat(pieces, 1)[:, :12].equal(labels[:, 1:]), "no pair is lost where pieces meet"


def _piece(tensor: torch.Tensor, size: int, rank: int) -> torch.Tensor:
    engine = SequenceEngine.__new__(SequenceEngine)
    engine.mesh = Mesh({**SIZES, "sp": size}, {"dp": 0, "tp": 0, "pp": 0, "sp": rank})
    return engine.piece(tensor, IGNORE)


def test_every_stage_has_a_block_and_every_parameter_one_owner() -> None:
    cut = Cut.even(10, 4)
    assert [len(cut.blocks(stage)) for stage in range(4)] == [3, 3, 2, 2]
    owners = {
        "model.embed_tokens.weight": 0,
        "model.layers.0.mlp.up_proj.weight": 0,
        "base_model.model.model.layers.3.self_attn.q_proj.lora_A.default.weight": 1,
        "model.layers.9.input_layernorm.weight": 3,
        "model.norm.weight": 3,
        "lm_head.weight": 3,
    }
    assert {name: cut.owner(name) for name in owners} == owners


def test_uneven_shards_put_together_are_the_whole() -> None:
    whole = torch.arange(70).reshape(10, 7)
    shard = Shard(1, (3, 2, 2))
    assert torch.cat([shard.part(whole, rank) for rank in range(3)], 1).equal(whole)
