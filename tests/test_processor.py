"""The probe tells what dies of a signal, what fails and what works, and the tests go on."""

import pytest

import processor

SCRIPT = """
def dies(): os.kill(os.getpid(), signal.SIGILL)
def fails(): raise ValueError("no such instruction")
def works(): pass
PARTS = [works, dies, fails]
"""


def test_each_part_has_its_own_fault():
    assert processor.faults_of(SCRIPT) == {"dies": "SIGILL", "fails": "no such instruction"}


def test_the_fault_is_the_reason_for_skipping(monkeypatch):
    monkeypatch.setattr(processor, "_bfloat16", lambda: {"conv": "SIGILL"})
    processor.skip_without_bfloat16("linear")
    with pytest.raises(pytest.skip.Exception, match="conv in bfloat16 on this processor: SIGILL"):
        processor.skip_without_bfloat16("conv")
