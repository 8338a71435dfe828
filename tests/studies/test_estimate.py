"""How long runs will take: from rounds that were timed, here or at another scale, else from this machine's speed."""

from pathlib import Path

import pytest

from fedssa.runs.directory import RunDir, fill_run_dir
from fedssa.settings.recipe import parse_settings
from fedssa.studies.estimate import duration, time_left
from fedssa.studies.paper import runs_of
from fedssa.studies.plan import Planned

NUM_SAMPLES = 60_000


def planned(out: Path, scale: str, method: str = "fedssa", seed: int = 0) -> Planned:
    (run,) = runs_of("table-hetero", scale, [seed], data=["cifar100"], clients=[100], methods=[method])
    return Planned(out / run.path, parse_settings(run.table()))


def timed(run: Planned, seconds: float) -> Planned:
    """As if its first round had taken that long."""
    run.path.parent.mkdir(parents=True, exist_ok=True)
    run_dir = RunDir(run.path, run.settings.table, "data", ("cat",), (1,))
    fill_run_dir(run_dir, {})
    run_dir.append_timing({"t": 0, "seconds": seconds})
    return run


def never(_: str) -> float:
    raise AssertionError("the machine is measured only where nothing was timed")


@pytest.mark.parametrize(("scale", "seconds"), [("full", 24_000), ("long", 4_800), ("reduced", 960)])
def test_a_guess_is_the_samples_of_all_rounds_by_the_speed(tmp_path: Path, scale: str, seconds: int) -> None:
    """N = 100, `long`: 100 rounds of a tenth of 48,000 training samples, 10 times over.

    A fifth of the clients each: a sample takes 1, 1, 0.5, 0.5, 2 ms, which is 1 ms in the mean.
    """
    speeds = {"cnn-1": 1_000.0, "cnn-2": 1_000.0, "cnn-3": 2_000.0, "cnn-4": 2_000.0, "cnn-5": 500.0}
    told = time_left([planned(tmp_path, scale)], [], NUM_SAMPLES, lambda arch: speeds[arch])
    assert told.startswith(f"very roughly {duration(seconds)}: a guess from how fast this machine trains cnn-1, cnn-2,")


def test_a_guess_knows_the_share_of_the_data_and_the_architecture(tmp_path: Path) -> None:
    """Ten rounds of one epoch on a fifth of 48,000 training samples, CNN-5 at 2,000 a second: 48 s."""
    (run,) = runs_of("hostile", "reduced", [0], cells=["homo-n20-c1-k5-share0.2-brief-none"], methods=["fedssa"])
    brief = Planned(tmp_path / run.path, parse_settings(run.table()))
    told = time_left([brief], [], NUM_SAMPLES, lambda arch: {"cnn-5": 2_000.0}[arch])
    assert told == "very roughly 48 s: a guess from how fast this machine trains cnn-5"


def test_rounds_of_another_scale_are_worth_their_epochs(tmp_path: Path) -> None:
    """A round of 2 epochs took 3 s, so one of 10 takes 15 s; 100 of them are 25 min, and of two seeds 50."""
    beside = [timed(planned(tmp_path, "reduced"), 3.0)]
    left = [planned(tmp_path, "long", seed=seed) for seed in (0, 1)]
    told = time_left(left, beside, NUM_SAMPLES, never)
    assert told == "about 50 min: an estimate from the rounds that were timed so far"


def test_rounds_of_this_scale_count_before_those_of_others(tmp_path: Path) -> None:
    """Of 100 rounds of 12 s all are left, as none was recorded; the other seed is like it, another method too."""
    beside = [timed(planned(tmp_path, "reduced", "fml"), 100.0)]
    left = [timed(planned(tmp_path, "long"), 12.0), planned(tmp_path, "long", seed=1), planned(tmp_path, "long", "fml")]
    told = time_left(left, beside, NUM_SAMPLES, never)
    assert told.startswith("about 60 min: ")


def test_a_run_of_other_settings_tells_nothing(tmp_path: Path) -> None:
    run = timed(planned(tmp_path, "reduced"), 3.0)
    assert run.is_there()
    assert not planned(tmp_path, "long").is_there()
    assert not Planned(run.path, planned(tmp_path, "long").settings).is_there()
