"""The command line as people use it: what it prints, what it refuses, and how it stops."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import fedssa
from fedssa import cli
from fedssa.cli import common
from fedssa.data.dataset import prepare
from fedssa.data.digits import Digits
from fedssa.runs.directory import RunDir, fill_run_dir
from fedssa.settings.command import command_of
from fedssa.simulate.saved_models import known
from tests.python import Program
from tests.tiny import TINY, tree

RECIPE = """
seed = 7
[data]
name = "digits"
[partition]
name = "classes"
clients = 4
classes_per_client = 5
[models]
archs = ["mlp-3", "mlp-2"]
width = 16
[local]
batch_size = 128
lr = 0.05
[rounds]
total = 3
fraction = 0.75
"""


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Command = Callable[..., Result]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with a recipe in it, and the current one."""
    (tmp_path / "tiny.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(here: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*args: str) -> Result:
        with pytest.raises(SystemExit) as ended:
            cli.main(args)
        captured = capsys.readouterr()
        code = ended.value.code
        return Result(code if isinstance(code, int) else 0, captured.out, captured.err)

    return call


def test_the_command_of_a_run_repeats_it_in_any_folder(command: Command, here: Path) -> None:
    command("run", "tiny.toml", "--workers", "1", "--out", "one")
    (here / "tiny.toml").unlink()
    again = command(*shlex.split(command_of(RunDir.open(here / "one")))[1:], "--workers", "1", "--out", "two")
    assert again.code == 0, again.err
    assert (here / "one" / "rounds.jsonl").read_bytes() == (here / "two" / "rounds.jsonl").read_bytes()


def test_run_then_show_then_resume(command: Command, here: Path) -> None:
    ran = command("run", "tiny.toml", "--workers", "1")
    assert ran.code == 0
    out = here / "runs" / "tiny-fedssa-s7"
    assert RunDir.open(out).outcome() is not None
    assert re.findall(r"fedssa: round (\d) of 3, accuracy \d+\.\d\d%", ran.err) == ["0", "1", "2", "3"]
    assert "finished, 3 of 3 rounds" in ran.out
    assert "to load a client's model: fedssa.load_client('runs/tiny-fedssa-s7', 0)" in ran.out
    before = tree(out)
    again = command("run", "--resume", str(out))
    assert again.code == 0
    assert "has ended already (finished)" in again.err
    assert tree(out) == before
    shown = command("show", str(out), "--clients", "--figure", "curve.png")
    assert shown.code == 0
    assert "rounds finished" in shown.out
    assert (here / "curve.png").stat().st_size > 10_000


def test_set_method_and_out(command: Command, here: Path) -> None:
    ran = command(
        "run", "tiny.toml", "--method", "standalone", "--set", "rounds.total=1", "--out", "a/b", "--workers", "1"
    )
    assert ran.code == 0
    assert RunDir.open(here / "a" / "b").settings["method"] == {"name": "standalone"}
    assert len(RunDir.open(here / "a" / "b").records()) == 2


def test_runs_are_compared_with_the_first(command: Command, here: Path) -> None:
    for name in ("standalone", "fedssa"):
        fedssa.run({**TINY, "method": {"name": name}}, out=here / name)
    shown = command("show", "standalone", "fedssa")
    assert shown.code == 0
    assert re.search("● fedssa .* ▲ standalone ", command("show", ".").out)  # a folder stands for the runs in it
    assert re.search(r"fedssa .* [+-]\d+\.\d+ ± \d+\.\d+", shown.out)


def test_partition_says_who_holds_what(command: Command, here: Path) -> None:
    shown = command("partition", "tiny.toml", "--set", "partition.clients=2", "--set", "partition.classes_per_client=3")
    assert shown.code == 0
    assert "4 of 10 classes are held by nobody" in shown.out
    assert (here / "runs" / "tiny-partition.png").stat().st_size > 5_000
    shown = command("partition", "tiny.toml", "--set", "data.share=0.5")
    assert "data.share = 0.5: 901 of 1,797 samples are used" in shown.out


def test_partition_shows_the_public_part_too(command: Command, here: Path) -> None:
    shown = command("partition", "tiny.toml")
    assert "public" not in shown.out
    shown = command("partition", "tiny.toml", "--set", "public.share=0.1", "--set", "public.per_round=20")
    assert "public: 179 samples with the task's labels, 20 of them a round\n" in shown.out
    (line,) = re.findall(r"^public, by class: (.*)$", shown.out, flags=re.MULTILINE)
    assert line.startswith("0: ")
    assert sum(map(int, re.findall(r": (\d+)", line))) == 179
    x, y = np.zeros((6, 32, 32, 1), np.uint8), np.array([0, 1, 2] * 2)
    x[:, 0, 0, 0] = np.arange(6)
    np.savez(here / "others.npz", x=x, y=y)
    own = ("public.name=npz", f"public.file={here / 'others.npz'}", "public.per_round=0")
    shown = command("partition", "tiny.toml", *(word for said in own for word in ("--set", said)))
    assert "public: 6 samples with labels of another task, 6 of them a round\n" in shown.out
    assert "by class" not in shown.out


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("methods", ["standalone ", "fedssa ", "m2-b ", "standalone-scaled "]),
        ("models", ["cnn-1 ", "cnn-5 ", "mlp-3 "]),
        ("datasets", ["digits ", "cifar10 ", "cifar100 ", "parquet ", "npz ", "images "]),
        ("doctor", ["torch 2", "GFLOP/s", "samples/s", "extra report"]),
    ],
)
def test_lists_have_a_line_each(command: Command, name: str, expected: list[str]) -> None:
    shown = command(name)
    assert shown.code == 0
    for text in expected:
        assert text in shown.out


ALONE = ("--workers", "1")  # what is found when the data are there need not wait for workers


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run"], "which recipe, or which sites?"),
        (["run", "none.toml"], "none.toml: there is no such recipe"),
        (["run", "tiny.toml", "--set", "local.epoch=2"], "unknown setting local.epoch (did you mean epochs?)"),
        (["run", "tiny.toml", "--set", "local.epochs"], "--set local.epochs: should be key=value"),
        (["run", "tiny.toml", "--set", "method.mu0=0"], "method.mu0 = 0: should be greater than 0"),
        (["run", "tiny.toml", "--set", "rounds.fraction=1.5"], "rounds.fraction = 1.5: should be less than"),
        (["run", "tiny.toml", "--set", "partition.classes_per_client=11", *ALONE], "classes_per_client = 11"),
        (["run", "tiny.toml", "--set", "partition.clients=2000", *ALONE], "partition.clients = 2000"),
        (["run", "tiny.toml", "--set", "partition.clients=1500", *ALONE], "cannot be split into training and test"),
        (["run", "tiny.toml", "--method", "fedsa"], "did you mean fedssa?"),
        (["run", "tiny.toml", "--data-dir", "x"], "unknown setting data.dir"),
        (
            ["run", "tiny.toml", "--set", "data.name=cifar10", "--data-dir", "nowhere", *ALONE],
            "nowhere holds no cifar10",
        ),
        (["run", "tiny.toml", "--resume", "x"], "--resume takes everything from the run directory"),
        (["run", "--resume", "nowhere"], "nowhere: not a run directory"),
        (["run", "tiny.toml", "--out", "tiny.toml"], "tiny.toml: exists and is not a run directory"),
        (["run", "tiny.toml", "--out", "/proc/x"], "/proc/x: cannot be written"),
        (["run", "tiny.toml", "--set", "data=digits", "--data-dir", "x"], "data = 'digits': should be a table"),
        (["run", "tiny.toml", "--set", "data.name=npz", "--set", "data.file=~nobody-here/x"], "no such home folder"),
        (["run", "tiny.toml", "--out", "x" * 300], "cannot be written (File name too long)"),
        (["partition", "tiny.toml", "--figure", "/proc/x.png"], "/proc/x.png: cannot be written"),
        (["methods", "fedsa"], "method = 'fedsa': unknown (did you mean fedssa?)"),
        (["methods", "fedssa.errors:DataError"], "should name a method"),
        (["methods", "--for", "none.toml"], "none.toml: there is no such recipe"),
        (["methods", "--for", "tiny.toml", "--set", "partition.clients=2000"], "partition.clients = 2000"),
        (["methods", "--figure", "family.pdf"], "family.pdf: this picture is a PNG or SVG file"),
        (["show", "nowhere"], "nowhere: not a run directory"),
        (["show", "tiny.toml"], "tiny.toml: not a run directory"),
        (["partition", "none.toml"], "none.toml: there is no such recipe"),
    ],
)
def test_a_mistake_gets_one_line_exit_2_and_changes_nothing(
    command: Command, here: Path, args: list[str], message: str
) -> None:
    before = tree(here)
    refused = command(*args)
    assert refused.code == 2
    assert message in refused.err
    assert refused.err.startswith("error: ")
    assert refused.err.count("\n") == 1
    assert refused.out == ""
    assert tree(here) == before


def test_divergence_exits_1_and_says_who_and_when(command: Command, here: Path) -> None:
    failed = command("run", "tiny.toml", "--set", "local.lr=1e12", "--workers", "1", "--out", "bad")
    assert failed.code == 1
    assert re.search(r"error: client \d diverged in round 0", failed.err)
    assert "diverged, round 0" in command("show", "bad").out


def test_resuming_a_diverged_run_says_so_and_exits_1(command: Command, here: Path) -> None:
    command("run", "tiny.toml", "--set", "local.lr=1e12", "--workers", "1", "--out", "bad")
    again = command("run", "--resume", "bad")
    assert again.code == 1
    assert "has ended already (client" in again.err


def test_a_terminal_that_knows_only_ascii(here: Path) -> None:
    fedssa.run({**TINY, "rounds": {"total": 1}}, out=here / "run")
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "fedssa", "show", "run"], cwd=here, env=env, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_help_and_lists_need_no_torch() -> None:
    commands = [["--help"], ["methods"], ["methods", "fedssa"], ["models"], ["datasets"], ["settings"]]
    code = (
        f"import sys\nfrom fedssa.cli import main\nfor words in {commands}:\n    sys.argv = ['fedssa', *words]\n"
        "    try:\n        main()\n    except SystemExit as end:\n        assert not end.code\n"
        "    assert 'torch' not in sys.modules and 'pydantic' not in sys.modules, words"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for text in ("partition", "fedssa-plus", "mlp-3", "cifar100", "batch_size"):
        assert text in done.stdout


def start_program(here: Path, *args: str, limit: int | None = None) -> Program:
    return Program("-m", "fedssa", "run", "tiny.toml", "--out", "run", *args, cwd=here, limit=limit)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_full_disk_is_one_line_and_the_run_can_go_on(here: Path, workers: str) -> None:
    """No file may grow beyond 300 kB: the settings fit, the clients' states do not, and the data are there already."""
    prepare(Digits())
    ended = start_program(here, "--workers", workers, limit=300_000).end()
    assert ended.returncode == 2
    line = ended.stderr.splitlines()[-1]
    assert line.startswith("error: run: cannot be written (File too large); free some space, then: fedssa run --resume")
    whole = fedssa.run(TINY, out=here / "whole")
    assert fedssa.resume(here / "run").records == whole.records


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_says_how_to_go_on(here: Path, workers: str) -> None:
    program = start_program(here, "--workers", workers, "--set", "rounds.total=400")
    rounds = here / "run" / "rounds.jsonl"
    while program.runs and not (rounds.exists() and rounds.read_bytes().count(b"\n") >= 3):
        time.sleep(0.02)
    program.kill(signal.SIGINT)
    ended = program.end()
    err = ended.stderr
    assert ended.returncode == 130, err
    stopped = re.search(r"stopped after round (\d+) of 400; to continue: fedssa run --resume run", err)
    assert stopped, err
    assert "Traceback" not in err
    assert len(RunDir.open(here / "run").records()) == int(stopped[1]) + 1


SITES = """
import numpy as np
from torch import nn
from fedssa import Site

x, y = np.eye(4, dtype=np.float32).repeat(5, axis=0), np.arange(4).repeat(5)
sites = {name: Site(model=nn.Linear(4, 4), train=(x, y), test=(x, y)) for name in ("north", "south")}
"""


def test_sites_are_run_and_two_runs_are_told_to_be_equal_or_not(command: Command, here: Path) -> None:
    (here / "sites.py").write_text(SITES)
    options = ("--set", "models.width=4", "--set", "rounds.total=1", "--workers", "1")
    assert command("run", "sites.py", *options).code == 0
    told = RunDir.open(here / "runs" / "sites-fedssa-s0").about["command"]
    assert told.startswith(f"fedssa run {here}/sites.py:sites.north {here}/sites.py:sites.south --set seed=0 ")
    assert command(*shlex.split(told)[1:], "--out", "again", "--workers", "1").code == 0
    same = command("diff", "runs/sites-fedssa-s0", "again")
    assert (same.code, same.out.strip()) == (0, "equal: 1 round; 4 uploads and states have the same digests")
    assert command("run", "sites.py:sites.north", "sites.py:sites.south", *options, "--set", "seed=1").code == 0
    other = command("diff", "again", "runs/sites-fedssa-s1")
    assert other.code == 1
    assert "different: again and runs/sites-fedssa-s1" in other.out
    assert "round 0: client north upload_digest is " in other.out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere.py"], "nowhere.py: there is no such file"),
        (["nowhere.py", "tiny.toml"], "tiny.toml: is no site; a recipe is run by itself"),
        (["tiny.toml", "--federation", "hq"], "tiny.toml: is no site; a recipe is run by itself"),
        (["nowhere.py", "--data-dir", "x"], "--data-dir: sites have data of their own; leave it out"),
        (["diff", "nowhere", "tiny"], "nowhere: not a run directory"),
    ],
)
def test_sites_that_are_none_are_refused_in_one_line(command: Command, words: list[str], reason: str) -> None:
    result = command(*(words if words[0] == "diff" else ["run", *words]))
    assert result.code == 2
    assert reason in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("console", [common.out, common.err])
def test_names_are_printed_letter_by_letter(console: Console) -> None:
    with console.capture() as printed:
        console.print(common.plain("client :smile: [red]a_b$"))
    assert printed.get() == "client :smile: [red]a_b$\n"


def test_a_model_is_exported_by_the_name_of_its_client(tmp_path: Path) -> None:
    path = tmp_path / "run"
    fill_run_dir(
        RunDir(path, {"partition": {"clients": 3}}, "", ("a", "b"), (2,), client_names=("5", "north", "7")), {}
    )
    assert [known(path, typed) for typed in ("north", "7", "2", "nobody")] == ["north", "7", 2, "nobody"]
