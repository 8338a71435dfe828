"""Progress on a terminal, in a notebook and where nobody looks."""

import io
import subprocess
import sys

import pytest
from rich.console import Console

from fedssa.records import RoundRecord
from fedssa.runs.progress import run_progress

RECORDS = (RoundRecord(-1, {}, 0), RoundRecord(0, {"own": 0.5}, 2))
NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell
from rich.console import Console

from fedssa.runs.progress import run_progress
from tests.runs.test_progress import RECORDS

shell = InteractiveShell.instance()
published = []
shell.display_pub.publish = lambda data, **how: published.append((how.get("update", False), data))
with run_progress("<mine>", 0, 4, Console(force_jupyter=True)) as heard:
    for record in RECORDS:
        heard(record)
for update, data in published:
    print(update, data["text/html"])
"""


@pytest.mark.parametrize(("terminal", "shown"), [(True, "mine: round 1 of 4"), (False, "")])
def test_a_bar_on_a_terminal_and_nothing_elsewhere(terminal: bool, shown: str) -> None:
    written = io.StringIO()
    with run_progress("mine", 0, 4, Console(file=written, force_terminal=terminal, width=100)) as heard:
        for record in RECORDS:
            heard(record)
    assert shown in written.getvalue()
    assert bool(written.getvalue()) == terminal


@pytest.mark.parametrize("width", [80, 120])
def test_words_of_a_bar_are_whole_on_any_terminal(width: int) -> None:
    written = io.StringIO()
    with run_progress("mine, seed 0", 0, 4, Console(file=written, force_terminal=True, width=width)) as heard:
        heard(RECORDS[1])
    last = written.getvalue().rpartition("mine, seed 0: round 1 of 4")[2]
    assert "accuracy 50.00%" in last
    assert "left" in last
    assert "…" not in last


def test_a_notebook_has_one_line_that_changes() -> None:
    done = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        'False <progress value="0" max="4"></progress> &lt;mine&gt;: starting',
        'True <progress value="0" max="4"></progress> &lt;mine&gt;: round 0 of 4, no accuracy yet',
        'True <progress value="1" max="4"></progress> &lt;mine&gt;: round 1 of 4, accuracy 50.00%',
    ]
