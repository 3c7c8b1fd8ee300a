"""The tutorials as notebooks: `python docs/tools/notebooks.py [name ...]` runs and writes them.

Nothing is written twice: the cells are the blocks of the pages. The last picture that a notebook draws is the
one that its page shows. mkdocs uses this file as a hook, which puts the notebooks on the site with what they
printed. No Jupyter is needed for any of this.
"""

from __future__ import annotations

import ast
import base64
import doctest
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
NAMES = ("researcher", "data-scientist", "deep-learning")
FENCE = re.compile(r"(?:<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<kind>\w+)\n(?P<code>.*?)^```\n", re.M | re.S)
PICTURE = re.compile(r"^!\[[^\]]*\]\(\.\./images/tutorial-[^)]*\)\n", re.M)

Cell = dict[str, Any]


def cells_of(page: str) -> list[Cell]:
    r"""The cells of a page: its text, its Python without prompts and answers, and its commands with `!`.

    >>> [cell["source"] for cell in cells_of("# Title\n\n```python\n>>> 1 + 1\n2\n\n```\n")]
    ['# Title', '1 + 1']
    """
    cells, end = [], 0
    for block in FENCE.finditer(page):
        cells.append(_cell("markdown", page[end : block.start()]))
        end = block.end()
        if block["kind"] == "text" or block["mark"]:
            continue  # what a cell prints; or what takes long, which is left to the page
        cells += [_cell("code", code) for code in _codes(block["kind"], block["code"])]
    cells.append(_cell("markdown", page[end:]))
    return [cell for cell in cells if cell["source"]]


def _cell(kind: str, text: str) -> Cell:
    if kind == "code":
        return {"cell_type": kind, "source": text, "metadata": {}, "execution_count": None, "outputs": []}
    return {"cell_type": kind, "source": PICTURE.sub("", text).strip(), "metadata": {}}


def _codes(kind: str, text: str) -> list[str]:
    """The code of a block; of a session, one piece up to each answer: a cell shows its last value only."""
    if kind == "console":
        commands = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
        return ["\n".join(f"!{command}" for command in commands)]
    if not text.startswith(">>>"):
        return [text.strip()]
    pieces = [""]
    for example in doctest.DocTestParser().get_examples(text):
        pieces[-1] += example.source
        if example.want:
            pieces.append("")
    return [piece.strip() for piece in pieces if piece.strip()]


def run(cells: list[Cell]) -> None:
    """Run the code cells in one namespace and a folder of their own, and keep what they show.

    The folder has what tutorials read: the folders beside the notebooks.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for files in (DOCS / "notebooks").iterdir():
            if files.is_dir():
                Path(folder, files.name).symlink_to(files)
        for number, cell in enumerate((c for c in cells if c["cell_type"] == "code"), 1):
            cell["execution_count"] = number
            cell["outputs"] = _outputs(cell["source"], namespace, number)


def _outputs(source: str, namespace: dict[str, Any], number: int) -> list[Cell]:
    """What a cell prints, the value of its last line, and the figures that it leaves open."""
    printed, value = io.StringIO(), None
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        if source.startswith("!"):
            for line in source.splitlines():
                print(_shell(line[1:]), end="")
        else:
            tree = ast.parse(source)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, f"cell {number}", "exec"), namespace)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
    outputs: list[Cell] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    pictures = _figures()
    if value is not None and not pictures:
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": number,
                "metadata": {},
                "data": _shown(value),
            }
        )
    return outputs + [
        {"output_type": "display_data", "metadata": {}, "data": {"image/png": picture}}
        for picture in pictures
    ]


def _shown(value: Any) -> dict[str, str]:
    data = {"text/plain": repr(value)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_()
    return data


def _figures() -> list[str]:
    """All open figures as PNG in base64; they are closed."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    pyplot, pictures = sys.modules["matplotlib.pyplot"], []
    for number in pyplot.get_fignums():
        content = io.BytesIO()
        pyplot.figure(number).savefig(content, format="png", dpi=130)
        pictures.append(base64.b64encode(content.getvalue()).decode())
    pyplot.close("all")
    return pictures


def _shell(command: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def notebook(cells: list[Cell]) -> str:
    """The file of a notebook."""
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return (
        json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": about, "cells": cells}, indent=1) + "\n"
    )


def write(name: str) -> None:
    """Run a tutorial, and write its notebook and the picture of its page."""
    cells = cells_of((DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8"))
    run(cells)
    (DOCS / "notebooks").mkdir(exist_ok=True)
    (DOCS / "notebooks" / f"{name}.ipynb").write_text(notebook(cells), encoding="utf-8")
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    pictures = [data["image/png"] for data in outputs if "image/png" in data]
    (DOCS / "images" / f"tutorial-{name}.png").write_bytes(base64.b64decode(pictures[-1]))


# ---- the site ------------------------------------------------------------------------------------


def page(name: str, content: str) -> str:
    """A notebook as a page of the site.

    >>> cells = [_cell("markdown", "# A"), _cell("code", "1")]
    >>> page("a", notebook(cells)).splitlines()[:3]
    ['# A', '', '[This notebook as a file](a.ipynb){ download }, made from ...']
    """
    parts = []
    for cell in json.loads(content)["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append(cell["source"])
        else:
            kind = "bash" if cell["source"].startswith("!") else "python"
            parts.append(f"```{kind}\n{cell['source']}\n```")
            parts += [_rendered(output) for output in cell["outputs"]]
    title, _, rest = "\n\n".join(parts).partition("\n")
    source = f"the [tutorial](../tutorials/{name}.md)"
    remark = f"[This notebook as a file]({name}.ipynb){{ download }}, made from {source}."
    return f"{title}\n\n{remark}\n{rest}\n"


def _rendered(output: Cell) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{output['text'].rstrip()}\n```"
    data = output["data"]
    if "image/png" in data:
        return f'<img alt="What the cell above draws" src="data:image/png;base64,{data["image/png"]}">'
    return data.get("text/html") or f"```text\n{data['text/plain']}\n```"


def on_files(files: Any, config: Any) -> Any:
    """The hook: one page for each notebook."""
    from mkdocs.structure.files import File

    for name in NAMES:
        content = (DOCS / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
        files.append(File.generated(config, f"notebooks/{name}.md", content=page(name, content)))
    return files


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    for chosen in sys.argv[1:] or NAMES:
        write(chosen)
