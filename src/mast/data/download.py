"""Downloads a known set into a folder: bounded in time and size, checked, and whole or not at all."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, BinaryIO

import mast
from mast.data import libsvm, lookup
from mast.data.catalogue import DataSet
from mast.data.lookup import decompress, read_bytes
from mast.errors import DataError

TIMEOUT = 10.0  # seconds for one answer of the server
PATIENCE = 30.0  # seconds after which the average speed counts
SLOWEST = 5_000.0  # bytes per second
LARGEST = 4 << 30  # bytes
_CHUNK = 1 << 16


class Unreachable(DataError):
    """The network did not give the file."""


def download(dataset: DataSet, folder: Path) -> Path:
    """Bring the set into `folder`; pooch writes it beside and renames it when all checks have passed."""
    import pooch

    pooch.get_logger().setLevel("WARNING")  # its progress notes are not errors of the user's

    def transfer(address: str, output: str, _: Any, check_only: bool = False) -> None:
        Path(output).unlink()  # pooch made it for its owner only; a data folder may be shared
        with Path(output).open("xb") as file:
            _stream(address, file)
        _accept(dataset, Path(output), folder)

    packed = dataset.packing or dataset.sha256 is None
    try:
        return Path(
            pooch.retrieve(
                url=dataset.address,
                known_hash=None if packed else f"sha256:{dataset.sha256}",
                fname=dataset.name + dataset.packing,
                path=folder,
                downloader=transfer,
            )
        )
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{dataset.name} cannot be written to {folder}: {reason}") from error


def _stream(address: str, file: BinaryIO) -> None:
    """Copy what the server sends, giving up when it is silent, slow, endless, or stops early."""
    begin = time.monotonic()
    received = 0
    request = urllib.request.Request(address, headers={"User-Agent": f"mast/{mast.__version__}"})
    with _open(request) as response:
        promised = response.headers.get("Content-Length", "")
        while chunk := _next(response):
            received += len(chunk)
            if received > LARGEST:
                raise Unreachable(f"the server sent more than {LARGEST} bytes")
            if time.monotonic() - begin > PATIENCE + received / SLOWEST:
                raise Unreachable(f"the server sent only {received} bytes in {PATIENCE:.0f} seconds")
            file.write(chunk)
    if promised.isdecimal() and received != int(promised):
        raise Unreachable(f"the connection ended after {received} of {promised} bytes")


def _open(request: urllib.request.Request) -> Any:
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise Unreachable(f"the server answered {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise Unreachable(f"the server could not be reached ({reason or type(error).__name__})") from error


def _next(response: Any) -> bytes:
    try:
        return bytes(response.read1(_CHUNK))
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"the connection broke ({error or type(error).__name__})") from error


def _accept(dataset: DataSet, file: Path, folder: Path) -> None:
    """Refuse what is not the set: by its checksum, or where none is known, by not being LIBSVM text."""
    text = decompress(read_bytes(file), dataset.address)
    sha256 = lookup.checksum(text)
    if dataset.sha256 is not None:
        if sha256 != dataset.sha256:
            raise DataError(
                f"{dataset.address} is not {dataset.name}: its sha256 is {sha256}, expected {dataset.sha256}"
            )
        return
    try:
        rows = libsvm.parse_libsvm(text)
    except DataError as error:
        raise DataError(f"{dataset.address}, {error}") from None
    if not rows.labels.size:
        raise DataError(f"{dataset.address}: there are no rows in it")
    lookup.record_checksum(folder, dataset.name, sha256)
