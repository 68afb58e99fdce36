"""One case on one rank, in one fresh process: build, train, evaluate, save, trace."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers import AutoTokenizer

from bench import jobfolder
from bench.records.folder import dump_json, write_atomic
from bench.records.memory import MemoryPass
from bench.spec import ds_config
from bench.spec.case import Case
from bench.spec.paths import local_path
from bench.worker.batches import Feed, global_loss_tokens, train_loader
from bench.worker.checkpoint import DiskTooSmall, save_and_load
from bench.worker.data import Dataset, build_dataset
from bench.worker.device import Device, check_precision, join_process_group, pick_device, seed_all
from bench.worker.engines.build import build_engine
from bench.worker.engines.protocol import Engine
from bench.worker.evaluate import evaluate, summed
from bench.worker.loop import StepRow, train
from bench.worker.memory_pass import trace_memory
from bench.worker.meters import Meters
from bench.worker.output import Output
from bench.worker.parallel.build import build
from bench.worker.parallel.mesh import build_mesh
from bench.worker.verify import verification_samples


def run(job_dir: Path) -> None:
    """Worker entry: run the case named in job.json, writing each result as soon as it is known.

    Raises:
        UnsupportedCase, DataError: the case cannot run here, in one sentence.
        torch.OutOfMemoryError and others: as they come; the supervisor makes a status of them.
    """
    job = jobfolder.read_job(job_dir)
    _CaseRun(job_dir, job, pick_device()).run()


class _CaseRun:
    """The phases of one case, in order."""

    def __init__(self, job_dir: Path, job: dict[str, Any], device: Device) -> None:
        info = job["rank_info"]
        self.job_dir, self.job, self.device = job_dir, job, device
        self.case = Case.model_validate(job["case"])
        self.rank, self.world_size = info["rank"], info["world_size"]
        self.meters = Meters(device)
        self.output = Output(jobfolder.out_folder(job_dir), self.rank, self.meters)

    @contextmanager
    def phase(self, name: str):
        """Measure a phase and tell the supervisor of it."""
        jobfolder.set_phase(self.job_dir, name)
        try:
            with self.meters.phase(name):
                yield
        finally:
            self.output.flush()

    def run(self) -> None:
        """Run every phase; the timed results are on disk before anything risky follows."""
        check_precision(self.case, self.device)
        with self.phase("join"):
            join_process_group(self.device, self.case.timeout_s)
        with self.phase("data"):
            dataset = self.load_data()
        with self.phase("build"):
            engine = self.build()
        self.evaluate(engine, dataset, "before")
        self.train(engine, dataset)
        self.evaluate(engine, dataset, "after")
        self.save(engine, dataset)
        self.trace(engine, dataset)
        dist.destroy_process_group()

    def load_data(self) -> Dataset:
        """Tokenise, and note what is fed."""
        self.tokenizer = AutoTokenizer.from_pretrained(str(local_path(self.case.model) or self.case.model))
        dataset = build_dataset(self.case, self.tokenizer)
        self.output.facts(data=dataset.facts)
        return dataset

    def build(self) -> Engine:
        """Model, adapters, engine; parameters are counted before any wrapping."""
        case = self.case
        config = ds_config.resolve(case, self.world_size) if case.engine == "deepspeed" else None
        if config is not None:
            write_atomic(self.output.folder / "ds_config.json", dump_json(config))
        seed_all(case.seed, 0)
        mesh = build_mesh(case)
        built = build(case, self.device, config, mesh)
        self.vocab = built.dims.vocab
        self.output.facts(parameters=built.parameters, model=built.dims)
        engine = build_engine(case, built, self.device, mesh, config)
        seed_all(case.seed, mesh.rank_at(tp=0))  # tensor-parallel ranks draw the same dropout masks
        return engine

    def feed(self, engine: Engine, dataset: Dataset) -> Feed:
        """This rank's micro-batches from the first one on."""
        pad = self.tokenizer.pad_token_id
        loader = train_loader(self.case, dataset.train, pad, engine.dp_rank, engine.dp_size)
        return Feed(iter(loader), self.device.torch)

    def train(self, engine: Engine, dataset: Dataset) -> None:
        """First step, warm-up and timed steps; results are written before this returns."""
        case, rows = self.case, []
        self.tokens = global_loss_tokens(case, dataset.train)
        steps = train(engine, case, self.feed(engine, dataset), self.tokens, self.rank)
        if case.warmup_steps:
            with self.phase("first_step"):
                rows += islice(steps, 1)
        if case.warmup_steps > 1:
            with self.phase("warmup"):
                rows += islice(steps, case.warmup_steps - 1)
        with self.phase("timed"):
            for row in steps:
                rows.append(row)
                self._tell(row)
        self.output.engine(engine)
        self.output.steps(rows)

    def _tell(self, row: StepRow) -> None:
        """Progress about once a second, outside the clock of the step."""
        per_tell = max(1, int(1.0 / max(row.wall_s, 1e-3)))
        if row.step % per_tell == 0:
            jobfolder.set_phase(self.job_dir, f"timed step {row.step + 1}/{self.case.steps}")

    def evaluate(self, engine: Engine, dataset: Dataset, moment: str) -> None:
        """Held-out scores of this rank's share."""
        if dataset.held_out:
            with self.phase(f"evaluate_{moment}"):
                scores = evaluate(engine, dataset.held_out, self.case.eval_batch_size, self.tokenizer.pad_token_id)
            self.output.scores(moment, scores)

    def save(self, engine: Engine, dataset: Dataset) -> None:
        """Checkpoints, and the loss that the reloaded export must give."""
        if not self.case.save_checkpoint:
            return
        pad = self.tokenizer.pad_token_id
        with self.phase("verify_loss"):
            scores = evaluate(engine, verification_samples(dataset), self.case.eval_batch_size, pad)
        folder = Path(self.job["checkpoint_dir"])
        try:
            facts = save_and_load(engine, self.case, self.tokenizer, folder, self.phase)
        except DiskTooSmall as error:
            self.output.facts(checkpoint=None, checkpoint_reason={"reason": str(error)})
            return
        self.output.facts(checkpoint=facts, verify=summed(scores))

    def trace(self, engine: Engine, dataset: Dataset) -> None:
        """The memory pass; its failure loses nothing that was measured before."""
        if not self.case.memory_steps:
            return
        with self.phase("memory_pass"):
            try:
                result = trace_memory(engine, self.case, self.feed(engine, dataset), self.tokens, self.vocab)
            except Exception as error:
                status = "oom" if "out of memory" in str(error).lower() else "crashed"
                result = MemoryPass(status=status, reason=f"{type(error).__name__}: {error}"[:500])
        self.output.record.memory_pass = self._against_counter(result)
        self.output.flush()

    def _against_counter(self, result: MemoryPass) -> MemoryPass:
        """Set the tally beside the allocator's own peak of the timed pass, where there is one."""
        counter = self.meters.memory["timed"].allocated_peak_bytes
        result.counter_peak_bytes = counter
        if counter and result.peak_bytes and abs(result.peak_bytes - counter) > 0.01 * counter:
            result.flagged = f"tally {result.peak_bytes} bytes, allocator {counter} bytes: more than 1 % apart"
        return result
