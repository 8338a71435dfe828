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
    known = [label for label in found if label in golden]
    wrong = [line for label in known for line in differences(label, golden[label], found[label], same_machine=True)]
    print("\n".join(wrong) or f"{len(known)} of {len(found)} cases are in the golden file, and equal to it")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
