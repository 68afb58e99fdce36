"""Figures hold what they should and nothing covers anything else."""

from __future__ import annotations

import pytest

from bench.report.figures import accuracy, loss, memory, throughput
from bench.report.figures.style import save, styled
from bench.report.source import load
from bench.report.words import Words
from tests.unit.factories import make_case, make_record, make_run, write_run
from tests.unit.report.runs import mixed_run

LONG = "Qwen2.5-32B-Instruct-b16-s4096-all-linear-r64-with-a-name-that-goes-on-$and$-on".replace("$", "")


@pytest.fixture(scope="module")
def thirty(tmp_path_factory):
    """Thirty cases on four GPUs with long names, every seventh out of memory."""
    records = []
    for i in range(30):
        tuning = "full" if i % 2 else "lora"
        case = make_case(f"{tuning}-z{i % 4}-{LONG}-{i}" if i % 3 else f"{tuning}-{i}", tuning, zero_stage=i % 4)
        if i % 7 == 6:
            records.append(make_record(case, "oom", gpu=True))
        else:
            records.append(make_record(case, gpu=True, world_size=4, exact=20 + i, scale=1 + i / 30))
    run = make_run([r.case.id for r in records], gpu=True, world_size=4, hosts=["a", "a", "b", "b"])
    return load(write_run(tmp_path_factory.mktemp("runs") / "thirty", run, records))


def overlaps(texts, renderer) -> list[tuple[str, str]]:
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in texts if t.get_text().strip()]
    return [(a, b) for i, (a, x) in enumerate(boxes) for b, y in boxes[i + 1 :] if x.overlaps(y)]


def test_labels_of_thirty_cases_do_not_collide(thirty):
    with styled("en"):
        figure = throughput.draw(thirty, Words("en"))
        figure.canvas.draw()
        labels = figure.axes[0].get_yticklabels()
        assert len(labels) == 30 and not overlaps(labels, figure.canvas.get_renderer())
        figure = accuracy.draw(thirty, Words("en"))
        figure.canvas.draw()
        assert not overlaps(figure.axes[0].texts, figure.canvas.get_renderer())


def test_many_ranks_are_cut_to_fullest_and_emptiest(thirty):
    with styled("zh"):
        axes = memory.draw(thirty, Words("zh")).axes[0]
    assert len(axes.get_yticks()) == 2 * 26
    assert sum("oom" in text.get_text() for text in axes.texts) == 4


def test_failed_cases_show_their_status(tmp_path):
    results = load(mixed_run(tmp_path))
    with styled("en"):
        labels = [t.get_text() for t in throughput.draw(results, Words("en")).axes[0].texts]
    assert "112.0; #2 oom" in labels and "#1 timeout, #2 not run" in labels and "not run" in labels


def test_loss_has_gaps_and_time_only_where_steps_are_stored(tmp_path):
    results = load(mixed_run(tmp_path))
    (tmp_path / "cases" / "partial" / "r1" / "steps.parquet").unlink()
    with styled("en"):
        by_step, by_time = loss.draw(results, Words("en")).axes
    assert (len(by_step.lines), len(by_time.lines)) == (4, 3)


def test_nothing_to_draw_is_no_figure(tmp_path):
    results = load(write_run(tmp_path, make_run(["full-z2"]), [make_record(status="oom")]))
    assert [draw(results, Words("en")) for draw in (memory.draw, throughput.draw, loss.draw, accuracy.draw)] == [
        None
    ] * 4


def test_unsplit_memory_is_drawn_whole(tmp_path):
    whole = make_record(gpu=True)
    ranks = [r.model_copy(update={"memory_pass": None}) for r in whole.ranks]
    results = load(write_run(tmp_path, make_run(["full-z2"], gpu=True), [whole.model_copy(update={"ranks": ranks})]))
    with styled("en"):
        figure = memory.draw(results, Words("en"))
        save(figure, tmp_path / "memory.png")
    assert len(figure.axes[0].patches) == 2


def test_dollars_and_rare_characters_are_plain_text(tmp_path):
    record = make_record(remarks=["x"])
    results = load(write_run(tmp_path, make_run(["full-z2", "a$b$^{"]), [record]))
    with styled("zh"):
        save(throughput.draw(results, Words("zh")), tmp_path / "t.png")
