"""python -m tests.derived: write again what the program itself can print or draw for the docs.

A comment names the command, `<!-- derived: fedssa methods --markdown -->`; what it prints stands below, up to a second
comment, `<!-- end -->`. The program is fedssa, or typer, which can describe fedssa's commands; `file` shows a file.
Pictures are named here, with the command that draws them. What the lists of the command line show is written too.
"""

import re
import shlex
import tempfile
from pathlib import Path

from fedssa.studies import listed
from fedssa.studies.catalogue import as_listed
from tests.python import python

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
LANGUAGES = {".py": "python", ".toml": "toml", ".cff": "yaml", ".txt": "text", ".tsv": "text", "": "text"}
BLOCK = re.compile(r"^(<!-- derived: ((?:fedssa|typer|file) .+) -->\n)(?:.*\n)*?(<!-- end -->)$", flags=re.MULTILINE)
CUT = re.compile(r"^\* `(\w+)`: .*\.\.\.$", flags=re.MULTILINE)
PICTURES = {ROOT / "docs/methods.svg": "fedssa methods --figure"}


def derived(text: str) -> str:
    """The text of a page as the program would have it."""
    return BLOCK.sub(lambda block: f"{block[1]}{printed(block[2])}{block[3]}", text)


def printed(command: str) -> str:
    if command.startswith("file "):
        return _shown(ROOT / command.removeprefix("file "))
    run = python("-m", *shlex.split(command))
    run.check_returncode()
    return CUT.sub(_whole, run.stdout) if command.startswith("typer ") else run.stdout


def _whole(line: re.Match[str]) -> str:
    """Gives a list of commands whole sentences: typer cuts them, and has them below, where it tells of the command."""
    below = re.compile(rf"^#+ `fedssa(?: \w+)? {line[1]}`\n\n(.+?\.)(?: |$)", flags=re.MULTILINE)
    told = below.search(line.string, line.end())
    return f"* `{line[1]}`: {told[1]}" if told else line[0]


def _shown(file: Path) -> str:
    return f"```{LANGUAGES[file.suffix]}\n{file.read_text()}```\n"


def drawn(command: str, name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        printed(f"{command} {shlex.quote(f'{folder}/{name}')}")
        return Path(folder, name).read_text()


def main() -> None:
    listed.FILE.write_text(as_listed().to_json(), encoding="utf-8")
    after = {page: derived(page.read_text()) for page in PAGES}
    after |= {picture: drawn(command, picture.name) for picture, command in PICTURES.items()}
    for path, text in after.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
