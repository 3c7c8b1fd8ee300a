"""What was tried and survived: a line of JSON per test, and the table that `make faults` ends with.

python tests/faults/tally.py FILE
"""

import json
import os
import sys
from pathlib import Path

#: a file, which `make faults` names in the environment; without it nothing is written
FILE = os.environ.get("MAST_FAULTS_TALLY")


def survived(what: str, tried: int, survived: int, how: str) -> None:
    """One row of the table."""
    if FILE:
        with Path(FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"what": what, "tried": tried, "survived": survived, "how": how}) + "\n")


def table(lines: list[str]) -> str:
    """The rows in Markdown; those of one kind are added up."""
    rows: dict[tuple[str, str], list[int]] = {}
    for row in map(json.loads, lines):
        counts = rows.setdefault((row["what"], row["how"]), [0, 0])
        counts[0] += row["tried"]
        counts[1] += row["survived"]
    shown = [
        f"| {what} | {tried:,} | {kept:,} | {how} |" for (what, how), (tried, kept) in sorted(rows.items())
    ]
    return "\n".join(["| What | Tried | Survived | How |", "|---|---|---|---|", *shown])


if __name__ == "__main__":
    print(table(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()))
