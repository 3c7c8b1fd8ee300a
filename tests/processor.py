"""What this processor cannot do, tried once in processes of their own, which an illegal instruction may kill.

Plain torch dies of one in bfloat16 on some processors with AMX, and refuses an LSTM on some without.
"""

import functools
import json
import subprocess
import sys

import pytest

BFLOAT16 = """
import torch
from torch import nn

def trains(layer, *shape):
    x = torch.randn(shape)
    for mode in (True, False):
        layer.train(mode)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = layer(x, x, x) if isinstance(layer, nn.MultiheadAttention) else layer(x)
            (out[0] if isinstance(out, tuple) else out).float().square().sum().backward()

def linear():
    trains(nn.Linear(5, 4), 10, 5)
    nn.Linear(5, 4, dtype=torch.bfloat16)(torch.ones(10, 5, dtype=torch.bfloat16)).sum().backward()

def conv():
    trains(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, stride=2)), 10, 1, 8, 8)

def lstm():
    trains(nn.LSTM(5, 6, num_layers=2, bidirectional=True), 10, 4, 5)

def attention():
    trains(nn.MultiheadAttention(8, 2), 10, 4, 8)

PARTS = [linear, conv, lstm, attention]
"""
EACH_IN_A_CHILD = """
import json, os, signal

def fault_of(part):
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            part()
        except Exception as error:
            os.write(writer, str(error).splitlines()[0].encode())
        os._exit(0)
    os.close(writer)
    status = os.waitpid(child, 0)[1]
    with os.fdopen(reader) as said:
        return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else said.read()

print(json.dumps({part.__name__: fault for part in PARTS if (fault := fault_of(part))}))
"""


def faults_of(script: str) -> dict[str, str]:
    """The functions in the script's PARTS that fail, each with its signal or error."""
    command = [sys.executable, "-c", script + EACH_IN_A_CHILD]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


@functools.cache
def _bfloat16() -> dict[str, str]:
    return faults_of(BFLOAT16)


def skip_without_bfloat16(part: str) -> None:
    """Skip the test that calls this where torch itself cannot train such a layer in bfloat16."""
    if fault := _bfloat16().get(part):
        pytest.skip(f"plain torch cannot train {part} in bfloat16 on this processor: {fault}")
