"""What grows, as tables."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.tables import table

Measured = dict[str, Any]


def _sizes(sizes: Sequence[Measured]) -> list[str]:
    head = ("N", "seconds a round", "times N = 100", "memory, GB", "disk, GB", "start, s", "resume, s")
    rows = [
        (
            f"{size['clients']:,}",
            f"{size['round']:.2f}",
            f"{size['round'] / sizes[0]['round']:.2f}",
            f"{size['memory'] / 1e9:.2f}",
            f"{size['disk'] / 1e9:.2f}",
            f"{size['start']:.1f}",
            f"{size['resume']:.1f}",
        )
        for size in sizes
    ]
    return [
        "## Many clients: a cohort of 10, CNN-1…5, 400 samples a client, E = 2, two workers",
        table(head, rows),
        "Memory is Pss_Anon + Pss_Shmem of all processes. Disk is that of the run after eleven rounds. Start is from "
        "nothing to the first record; resume is what the first round after a stop takes longer than another. With many "
        "clients each one of a cohort is there for the first time: its weights are drawn, and its state takes new "
        "pages of the disk, where a client that comes again writes over old ones.",
    ]


def _classes(classes: Sequence[Measured]) -> list[str]:
    first = classes[0]
    rows = [
        (
            f"{r['classes']:,}",
            f"{r['round']:.2f}",
            *(f"{r[key] / first[key]:.2f}" for key in ("round", "flops", "state")),
        )
        for r in classes
    ]
    return [
        "## Many classes: 10 clients, CNN-1…5, 400 samples each, E = 1, one process",
        table(("S", "CPU s a round", "times the first", "its FLOPs, times", "its state, times"), rows),
        "A client holds two classes, but its header has all S rows: it computes with them, and they are updated, "
        "hashed and written in every round. What is longer than that would be ours.",
    ]


def _rounds(rounds: Sequence[Measured]) -> list[str]:
    rows = [
        (
            f"{r['rounds']:,}",
            f"{r['bytes'] / 1e6:.1f}",
            *(f"{r[key]:.2f} ({1e6 * r[key] / r['rounds']:.0f})" for key in ("write", "resume", "report")),
        )
        for r in rounds
    ]
    return [
        "## Many rounds: the records of N = 100 with a cohort of 10",
        table(("T", "rounds.jsonl, MB", "to write, CPU s (µs a round)", "to take up again", "to report on"), rows),
    ]


def _report(report: Measured) -> list[str]:
    return [
        f"`fedssa report` over {report['runs']:,} runs of N = 100, T = 100, in experiments of five methods and ten "
        f"seeds: **{report['seconds']:.1f}** CPU seconds; the goal is 10 for 500.",
    ]


GROWTH: dict[str, Callable[[Any], list[str]]] = {
    "sizes": _sizes,
    "classes": _classes,
    "rounds": _rounds,
    "report": _report,
}
