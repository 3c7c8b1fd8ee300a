"""The pictures of the pages, made by MAST itself: `python docs/tools/pictures.py [name ...]`.

gallery         what the commands on the gallery page and the study of conditioning draw (a few minutes)
guides          the figures of the guides, from the numbers of the studies (seconds)
architecture    the rooms of the source, and the data's way through a run
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"

# name of the picture -> the command, and the figure that it leaves
GALLERY = {
    "accuracy": ("mast reproduce accuracy --dataset a1a --out runs/accuracy", "accuracy_box"),
    "trajectory": ("mast reproduce trajectory --dataset a1a --out runs/trajectory", "trajectory"),
    "rand1": ("mast reproduce rand1 --dataset a1a --out runs/rand1", "rand1"),
    "shift": ("mast reproduce shift --dataset a1a --out runs/shift", "shift_a1a"),
    "interpolation": ("mast reproduce shift --dataset a1a --out runs/shift", "interpolation"),
    "conditioning": ("python -m studies.conditioning --dataset a1a --out runs/conditioning", "conditioning"),
    "dropout": ("mast reproduce dropout --out runs/dropout", "dropout_digits"),
}


# ---- gallery and architecture --------------------------------------------------------------------


def gallery() -> None:
    """The figures of the gallery, from the commands that the page shows."""
    with tempfile.TemporaryDirectory() as folder:
        done = set()
        for picture, (command, figure) in GALLERY.items():
            if command not in done:
                _command(command, folder)
                done.add(command)
            out = Path(folder) / command.split("--out ")[1]
            shutil.copy(out / "figures" / f"{figure}.png", IMAGES / f"gallery-{picture}.png")


def _command(command: str, folder: str | None = None) -> None:
    tool, *words = command.split()
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]  # studies are not installed
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    subprocess.run([Path(sys.executable).parent / tool, *words], cwd=folder, env=environment, check=True)


def architecture() -> None:
    """The diagram of the rooms."""
    sys.path.insert(0, str(Path(__file__).parent))
    from rooms import diagram  # beside this file

    (IMAGES / "architecture.svg").write_text(diagram(), encoding="utf-8")


def guides() -> None:
    """The figures of the guides."""
    sys.path.insert(0, str(Path(__file__).parent))
    from guides import draw_all  # beside this file

    draw_all()


PICTURES = {
    "gallery": gallery,
    "guides": guides,
    "architecture": architecture,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
