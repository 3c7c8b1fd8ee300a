"""Certificates for a federation on this machine: an authority of its own, and a key for 127.0.0.1.

Between real machines use certificates of your own authority, with the server's name in them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


def make(folder: Path, days: int = 2) -> tuple[Path, Path, Path]:
    """The authority's certificate, the server's certificate, and the server's key, made with openssl."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, authority_key = folder / "ca.pem", folder / "ca.key"
    server, key, request = folder / "server.pem", folder / "server.key", folder / "server.csr"
    extensions = folder / "server.ext"
    extensions.write_text(f"{NAMES}\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n")
    new = ["req", "-newkey", "rsa:2048", "-nodes", "-sha256"]
    openssl(
        *new, "-x509", "-days", str(days), "-subj", "/CN=a MAST federation",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        "-keyout", str(authority_key), "-out", str(authority),
    )  # fmt: skip
    openssl(*new, "-subj", "/CN=127.0.0.1", "-keyout", str(key), "-out", str(request))
    openssl(
        "x509", "-req", "-sha256", "-days", str(days), "-in", str(request), "-CA", str(authority),
        "-CAkey", str(authority_key), "-CAcreateserial", "-extfile", str(extensions), "-out", str(server),
    )  # fmt: skip
    for private in (key, authority_key):
        private.chmod(0o600)
    return authority, server, key


def openssl(*arguments: str) -> None:
    """Run openssl; its own words are the error."""
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"openssl failed: {done.stderr.strip()}")
