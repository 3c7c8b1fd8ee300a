"""The code blocks of a page, and how each is run.

The blocks of one page run in order, in one namespace and one temporary folder. A comment on the line before a
block changes that: `<!-- slow -->` leaves it to `make test-all`, `<!-- not run: reason -->` leaves it out.
A `text` block right after a block that ran is what that block prints. Decimal numbers may differ a little
from those shown: an accuracy is one row higher on one processor than on another.
"""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])

RUN = ("python", "pycon", "console", "bash")  # what is run
SHOWN = ("text", "toml", "yaml", "json", "csv", "bibtex")  # what is only read
OPTIONAL = {  # packages, and words that show a need for them
    "torch": ("torch", "mast.nn", "mast.cluster", "mast.federated"),
    "flwr": ("flwr", "mast.federated"),
    "transformers": ("transformers",),
    "tensorboard": ("tensorboard",),
    "matplotlib": (".plot(", "--plot", "mast reproduce"),
}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(
    r"(?P<before>[^\n]*)\n\s*?(?P<indent>^[ ]*)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
DECIMAL = re.compile(r"(?<![\w.])-?\d*\.\d+(?:e[+-]?\d+)?")
SNIPPET = re.compile(r'^--8<-- "(.*)"$', re.MULTILINE)


class NearlyEqual(doctest.OutputChecker):
    """Accepts decimal numbers within two units of their last shown digit, or within one percent."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Whether what was printed is what is shown, once close numbers are written alike."""
        shown, printed = DECIMAL.findall(want), DECIMAL.findall(got)
        if "..." not in want and len(shown) == len(printed):
            same = iter([a if _close(a, b) else b for a, b in zip(shown, printed, strict=True)])
            got = DECIMAL.sub(lambda _: next(same), got)
        return super().check_output(want, got, optionflags)


def _close(shown: str, printed: str) -> bool:
    digits, _, exponent = shown.partition("e")
    last = 10.0 ** (int(exponent or 0) - len(digits.split(".")[1]))
    return abs(float(shown) - float(printed)) <= max(2.01 * last, 0.01 * abs(float(shown)))


@dataclass
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    line: int
    mark: str  # "", "slow", or "not run: ..."
    output: str | None = None  # what a text block right after it shows

    @property
    def runs(self) -> bool:
        """Whether it is code that is run, now or with the slow tests."""
        return self.language in RUN and not self.mark.startswith("not run")

    @property
    def is_doctest(self) -> bool:
        """Whether it is a Python session with answers."""
        return self.language in ("python", "pycon") and self.text.lstrip().startswith(">>>")


def tool(name: str) -> Any:
    """A module of docs/tools."""
    sys.path.insert(0, str(ROOT / "docs" / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "docs" / "tools"))


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = "\n" + page.read_text(encoding="utf-8")
    blocks: list[Block] = []
    end = 0
    for found in FENCE.finditer(text):
        indent = len(found["indent"])
        body = "".join(line[indent:] if line.strip() else line for line in found["body"].splitlines(True))
        body = SNIPPET.sub(lambda name: (ROOT / name[1]).read_text(encoding="utf-8"), body)
        mark = re.fullmatch(r"\s*<!-- (slow|not run: .+) -->\s*", found["before"])
        language = (found["info"].split() or [""])[0]
        between = text[end : found.start("indent")]
        if language == "text" and blocks and blocks[-1].runs and not between.strip():
            blocks[-1].output = body
        else:
            line = text.count("\n", 0, found.start("indent"))
            blocks.append(Block(language, body, line, mark[1] if mark else ""))
        end = found.end()
    return blocks


def bring_files(folder: Path) -> None:
    """Put what tutorials read, the folders of docs/notebooks, into the folder where their blocks will run."""
    for files in (ROOT / "docs" / "notebooks").iterdir():
        if files.is_dir():
            (folder / files.name).symlink_to(files)


def lacks(page: Path) -> str | None:
    """The optional package that the code of a page needs and that is not installed here, if there is one."""
    code = "\n".join(block.text for block in blocks_of(page) if block.runs)
    for package, words in OPTIONAL.items():
        if any(word in code for word in words) and importlib.util.find_spec(package) is None:
            return package
    return None


def run(blocks: list[Block], page: Path) -> None:
    """Run blocks in order in the current folder; the first that fails raises, with its line."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        try:
            if block.is_doctest:
                _run_session(block, namespace, page)
            elif block.language in ("python", "pycon"):
                _check(block.output, _run_python(block, namespace, page), "python")
            elif block.language == "console":
                _run_console(block)
            else:
                _check(block.output, _run_shell(f"set -euo pipefail\n{block.text}"), block.text)
        except Exception as error:
            raise AssertionError(f"{page.relative_to(ROOT)}, line {block.line}: {error}") from error


def _run_python(block: Block, namespace: dict[str, Any], page: Path) -> str:
    printed = io.StringIO()
    # Lines count as in the page, so that a traceback points into it.
    code = compile("\n" * block.line + block.text, str(page), "exec", dont_inherit=True)
    with redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


def _run_session(block: Block, namespace: dict[str, Any], page: Path) -> None:
    test = doctest.DocTestParser().get_doctest(block.text, {}, page.name, str(page), block.line)
    test.globs = namespace  # shared with the other blocks, where get_doctest would copy
    report: list[str] = []
    doctest.DocTestRunner(NearlyEqual(), optionflags=OPTIONS, verbose=False).run(
        test, out=report.append, clear_globs=False
    )
    if report:
        raise AssertionError("".join(report))


def _run_console(block: Block) -> None:
    """Each line that starts with `$ ` is a command; what follows is what it prints, where anything does."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, rest = re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*)\n?(.*)", part, re.DOTALL).groups()
        refused = rest.startswith("mast: ")  # an error is shown on purpose
        _check(rest if rest.strip() else None, _run_shell(command, expected=2 if refused else 0), command)


def _run_shell(command: str, expected: int = 0) -> str:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", "-c", command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    if done.returncode != expected:
        raise AssertionError(f"{command}\nended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def _check(expected: str | None, printed: str, what: str) -> None:
    if expected is not None and not NearlyEqual().check_output(expected, printed, OPTIONS):
        raise AssertionError(f"{what}\nprints\n{printed}\nthe page shows\n{expected}")
