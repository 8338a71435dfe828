"""python -m tests.derived: write the blocks of the docs again that the program itself can print.

A comment names the command, `<!-- derived: fedssa methods --markdown -->`; what it prints stands below, up to a second
comment, `<!-- end -->`.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(<!-- derived: fedssa (.+) -->\n)(?:.*\n)*?(<!-- end -->)$", flags=re.MULTILINE)


def derived(text: str) -> str:
    """The text of a page as the program would have it."""
    return BLOCK.sub(lambda block: f"{block[1]}{printed(block[2])}{block[3]}", text)


def printed(arguments: str) -> str:
    command = [sys.executable, "-m", "fedssa", *shlex.split(arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    for page in PAGES:
        before = page.read_text()
        after = derived(before)
        if after != before:
            page.write_text(after)
            print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
