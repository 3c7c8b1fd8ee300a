"""Progress: a bar on a terminal, lines elsewhere, silence where nobody asked."""

import io
import sys

import pytest

from mast.support import progress
from mast.support.progress import Progress


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    for name in ("BAR_AFTER", "BAR_EVERY", "LINE_EVERY"):
        monkeypatch.setattr(progress, name, 0.0)


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_elsewhere_than_on_a_terminal_there_is_nothing_unless_asked(capsys):
    for show, expected in ((None, 0), (False, 0), (True, 2)):
        with Progress(2, "sweep", show) as bar:
            bar.advance(1)
            bar.advance(2)
        assert len(lines(capsys)) == expected


def test_a_line_has_count_speed_note_and_remaining_time(capsys):
    with Progress(1000, "training", True, unit="rounds", first=10) as bar:
        bar.begun -= 20.0  # as if that long ago
        bar.advance(30, note="12 kB per round")
        bar.advance(1000)
    assert lines(capsys)[0] == (
        "training: 30 of 1,000 rounds, 1 per second, 12 kB per round, about 16 min 10 s left"
    )


def test_pieces_of_unequal_work(capsys, monkeypatch):
    """The first piece waited four seconds for what the others need not wait for."""
    clock = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock)
    with Progress(3, "computing", True, unit="cells", work=10.0) as bar:
        clock = 105.0
        bar.advance(1, work=2.0)
        clock = 108.0
        bar.advance(2, work=8.0)
        bar.advance(3, work=10.0)
    assert lines(capsys) == [
        "computing: 1 of 3 cells, starting",
        "computing: 2 of 3 cells, about 1.0 s left",
        "computing: 3 of 3 cells, done",
    ]


def test_the_last_line_is_written_however_short_the_work(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 1000.0)
    with Progress(5, "training", True) as bar:
        for done in range(5):
            bar.advance(done + 1)
    (line,) = lines(capsys)
    assert line.startswith("training: 5 of 5")
    assert line.endswith("done")


def test_a_bar_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "100")
    with Progress(4, "sweep") as bar:
        bar.advance(1)
        bar.advance(4)
        bar.bar.refresh()
    assert "4 of 4" in sys.stderr.getvalue()
