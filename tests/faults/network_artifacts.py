"""The files that need PyTorch: sparse deltas, submodels in files, the checkpoint of a server."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn

import mast
from faults.artifacts import PROBLEM, Artifact, Sealed
from mast.distributed import Participation, ProblemWorker, Server, VectorCapacity, run_in_process
from mast.errors import DataError
from mast.nn.files import state, tensor_files
from mast.results import SUMMARY, Result


def _model(value: float) -> nn.Module:
    """A small network, the same each time."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) * value + number)
    return model.eval()


def _output(model: nn.Module) -> Any:
    return model(torch.ones(2, 3)).tolist()


def _tensors(model: nn.Module) -> Any:
    """All of its state: a file may hold types that only its reader's own model can use together."""
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


def _delta(folder: Path) -> Path:
    model = _model(0.5)
    sk = mast.nn.sparsify(model, mast.RandK(0.5), shift=_model(0.25).state_dict())
    return mast.nn.save_delta(sk, folder / "delta.safetensors")


def _submodel(folder: Path) -> Path:
    sk = mast.nn.sparsify(_model(0.5), mast.Bernoulli(0.5))
    return mast.nn.save_submodel(sk.submodel(7, calibrate=False), folder / "submodel.safetensors")


def _sparsifier() -> mast.nn.Sparsifier:
    return mast.nn.sparsify(_model(0.5), mast.Bernoulli(0.5), shift=_model(0.25).state_dict(), seed=3)


def _state(folder: Path) -> Path:
    sk = _sparsifier()
    sk.advance()
    state.write_state(sk, folder)
    return folder / state.FILE


def _restored(path: Path) -> Any:
    sk = _sparsifier()
    state.read_state(sk, path.parent)
    return [sk.seed, sk.step, sk.node, [v.tolist() for v in (sk.shift or {}).values()]]


def _server() -> Server:
    parts = [VectorCapacity(PROBLEM.sketch, 3)] * 2
    return Server(np.zeros(3), parts, Participation(0, nodes=2), step_size=0.01, optimizer="adam")


def _served(folder: Path) -> Path:
    server = _server()
    run_in_process(server, [ProblemWorker(PROBLEM)] * 2, rounds=5)
    server.save(folder / "server.mast", {"note": "five rounds"})  # once, so that nothing stands in for it
    return folder / "server.mast"


def _continued(path: Path) -> Any:
    server = _server()
    if server.load(path) is None:
        raise DataError("there is no file")
    return [server.t, server.x.tolist()]


def _ended(folder: Path) -> Path:
    row = {"node": 0, "accuracy": 0.5, "accuracy lowest": 0.25, "accuracy highest": 0.75}
    known = {"steps": 5, "step_size": 0.1, "note": "a note", "method": "distributed", "rows": []}
    Result(np.ones(3), "finished", **known, guarantee=None, nodes=[row]).save(folder)
    return folder / SUMMARY


def _open(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The description and the tensors of a file of the network's, as arrays."""
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    description = json.loads(header["__metadata__"]["mast"])
    return description, {name: tensor.numpy() for name, tensor in safetensors.torch.load(raw).items()}


def _seal(path: Path, description: dict[str, Any], arrays: dict[str, Any]) -> None:
    tensors = {
        name: torch.from_numpy(np.asarray(array))
        for name, array in arrays.items()
        if array.dtype.kind not in "Uc"
    }
    description = {key: value for key, value in description.items() if key != "sha256"}
    tensor_files.write(path, description.get("kind", ""), description.get("format", 0), description, tensors)


Tensors = partial(Artifact, open=_open, seal=_seal)
ARTIFACTS = {
    "state of a sparsifier": Tensors(_state, _restored),
    "delta of a network": Tensors(_delta, lambda p: _output(mast.nn.apply_delta(_model(0.25), p))),
    "submodel of a network": Tensors(_submodel, lambda p: _tensors(mast.nn.load_submodel(p, _model(0.25)))),
    "checkpoint of a server": Sealed(_served, _continued),
    "result of a run with nodes": Artifact(_ended, lambda p: Result.load(p.parent).steps, summed=False),
}
