"""python -m tests.golden [--write]"""

import sys

from tests.golden.records import FILE, cases, differences, machine, read, run_case, write


def main() -> int:
    found = {}
    for label, table in cases().items():
        found[label] = run_case(table)
        print(f"{label}: {found[label][-1]['server']}", flush=True)
    if "--write" in sys.argv[1:]:
        write(found)
        print(f"wrote {FILE} for {machine()}")
        return 0
    golden = read().get(machine())
    if golden is None:
        print(f"other processor, compare statistics: {FILE} has no entry for {machine()}")
        return 0
    wrong = [line for label in found for line in differences(label, golden[label], found[label], same_machine=True)]
    print("\n".join(wrong) or "equal to the golden file")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
