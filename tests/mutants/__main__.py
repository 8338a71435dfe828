"""python -m tests.mutants [--part methods] [--number 200] [--seed 0] [--jobs 2] [--list]

Puts one small mistake at a time into a copy of the sources and runs the tests of that part until one fails. Results
are kept in a file, so that a run that was stopped, or a larger sample, goes on where the last one ended. Where tests
have become better since, --again runs the survivors once more; where they may have become worse, remove the file.
A mutant that took too long counts as killed, but is told like a survivor: the machine may only have been busy.
"""

import argparse
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.mutants.campaign import BaselineError, Campaign, all_mutants
from tests.mutants.mutant import Mutant, sample
from tests.mutants.parts import PACKAGES, PARTS, ROOT
from tests.mutants.results import Result, append, explanations, read, survivors, table, tally, told

LEAST = 0.95  # share that the tests of a part should kill


def main() -> int:
    options = _options()
    chosen = {name: _chosen(name, options) for name in options.part or PARTS}
    if options.list:
        for name, mutants in chosen.items():
            print(f"# {name}", *map(told, mutants), sep="\n")
        return 0
    try:
        _run(chosen, options)
    except BaselineError as error:
        print(error)
        return 2
    return _report(chosen, options.results)


def _options() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__.split("\n\n")[1])
    parser.add_argument("--part", action="append", choices=PARTS, help="may be given several times; else all parts")
    parser.add_argument("--number", type=int, default=200, help="of mutants of each part (200)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--file", default="", help="only of files whose path contains this")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (2)")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "mutants.jsonl", help="(runs/mutants.jsonl)")
    parser.add_argument("--again", action="store_true", help="run once more what was not killed, or not in time")
    parser.add_argument("--list", action="store_true", help="only show the mutants")
    return parser.parse_args()


def _chosen(part: str, options: argparse.Namespace) -> list[Mutant]:
    mutants = [mutant for mutant in all_mutants(ROOT, PARTS[part]) if options.file in mutant.file]
    return sample(mutants, options.number, options.seed)


def _run(chosen: dict[str, list[Mutant]], options: argparse.Namespace) -> None:
    """What the results file does not say yet."""
    known = read(options.results)
    due = {name: [m for m in mutants if _is_due(known.get((name, m.id)), options)] for name, mutants in chosen.items()}
    parts = {name: PARTS[name] for name, mutants in due.items() if mutants}
    if not parts:
        return
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as place,
        closing(Campaign(ROOT, parts, Path(place), options.jobs, PACKAGES)) as campaign,
    ):
        for name in parts:
            print(f"{name}: {len(due[name])} mutants; all tests take {campaign.seconds(name):.0f} s", flush=True)
            for result in campaign.run(name, due[name]):
                append(options.results, result)
                if result.outcome != "killed":
                    print(f"{result.outcome}  {told(result)}", flush=True)


def _is_due(result: Result | None, options: argparse.Namespace) -> bool:
    return result is None or (options.again and result.outcome != "killed")


def _report(chosen: dict[str, list[Mutant]], file: Path) -> int:
    known, explained = read(file), explanations()
    results = {name: [known[name, mutant.id] for mutant in mutants] for name, mutants in chosen.items()}
    tallies = [tally(name, found, explained) for name, found in results.items()]
    for name, found in results.items():
        unexplained = survivors(found, explained)
        endless = [result for result in found if result.outcome == "timeout"]
        print(f"\n# {name}: {len(unexplained)} survivors without an explanation", *map(told, unexplained), sep="\n")
        print(f"# {name}: {len(endless)} took too long", *map(told, endless), sep="\n")
    print("\n" + table(tallies))
    return int(any(one.share < LEAST for one in tallies))


if __name__ == "__main__":
    sys.exit(main())
