"""Columns of the per-step and per-sample tables beside each case.json, with their units."""

from __future__ import annotations

STEP_COLUMNS = {
    "rank": "int32",
    "step": "int32",  # from 0, warm-up included
    "timed": "bool",  # False in the warm-up
    "start_s": "float64",  # since the first step of this rank began
    "wall_s": "float64",  # from asking for the batch to the fence after the optimizer step
    "data_wait_s": "float64",  # of wall_s, waiting for batches
    "engine_s": "float64",  # of wall_s, inside the engine (forward, backward, step, fence)
    "loss_sum": "float64",  # of this rank's tokens; null where not finite
    "loss_tokens": "int64",
    "samples": "int64",
    "tokens": "int64",  # non-padding
    "padded_tokens": "int64",  # positions computed, padding included
    "grad_norm": "float64",  # global, before clipping; null where the engine gives none
    "learning_rate": "float64",
    "skipped": "bool",  # by the loss scaler
}
"""`steps.parquet`: one row per rank and optimizer step."""

EVAL_COLUMNS = {
    "moment": "string",  # before | after
    "sample": "int64",  # row number in the source
    "loss_sum": "float64",
    "loss_tokens": "int64",
    "correct_tokens": "int64",  # teacher-forced argmax equals the answer's token
    "exact": "bool",  # all of them
}
"""`eval.parquet`: one row per moment and held-out sample."""
