"""What ranks say to each other before the first round."""

import json

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from mast.engines.torchrun.wire import Wire
from mast.errors import DataError


class Meanwhile(dist.HashStore):
    """A store in which another rank speaks, and fails, right after it was first asked for its fact."""

    def check(self, names: list[str]) -> bool:
        """As the store, and then the other rank goes on."""
        there = super().check(names)
        if names == ["0/1"] and not there:
            super().set("0/1", json.dumps("a fact"))
            super().set("fault", json.dumps([False, "rank 1: it failed"]))
        return there


@pytest.fixture
def wire():
    found = Wire(timeout=5.0)
    found._store = Meanwhile()
    return found


def test_what_a_rank_said_before_it_failed_is_heard(wire):
    assert json.loads(wire._fact("0/1", 1)) == "a fact"


def test_a_failure_is_raised_where_nothing_was_said(wire):
    wire._store.set("fault", json.dumps([False, "rank 1: it failed"]))
    with pytest.raises(DataError, match="rank 1: it failed"):
        wire._fact("0/2", 2)
