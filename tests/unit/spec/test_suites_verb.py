"""The listing of suites says what a run is expected to take."""

from click.testing import CliRunner

from bench.cli.suites import command


def test_time_and_price_are_those_of_the_cases_that_fit() -> None:
    out = (
        CliRunner()
        .invoke(
            command, ["qwen2.5-32b-a100x8", "--gpu", "a100-80gb", "--price-per-gpu-hour", "2"], catch_exceptions=False
        )
        .output
    )
    last = out.strip().splitlines()[-1]
    assert "of training steps" in last and "do not fit or are not known" in last
    hours = [int(part) for part in last.split("A100-SXM4-80GB: ")[1].split()[0:4:2]]
    price = float(last.split("price ")[1].split(";")[0])
    assert abs(price - 8 * 2 * (hours[0] + hours[1] / 60)) < 1


def test_without_a_gpu_no_time_is_said() -> None:
    out = CliRunner().invoke(command, ["tiny"], catch_exceptions=False).output
    assert "give --gpu for the time" in out and "training steps" not in out
