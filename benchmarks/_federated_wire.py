"""Bytes on the wire of the deployment engine: what HTTP, Flower's framing and polling add to the records.

Run it by hand (about two minutes): ``python benchmarks/_federated_wire.py``. Every SuperNode talks to the
SuperLink through a relay that counts.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "federated"
sys.path.insert(0, str(EXAMPLE))

from run import Federation, free_port  # noqa: E402

import mast  # noqa: E402


class Relay:
    """Passes bytes on, and counts them."""

    def __init__(self, to: int) -> None:
        self.port, self.to, self.up, self.down = free_port(), to, 0, 0
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        async with server:
            await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:  # the SuperLink has ended
            writer.close()
            return
        await asyncio.gather(self._pass(reader, back, "up"), self._pass(there, writer, "down"))

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, name: str) -> None:
        try:
            while chunk := await source.read(1 << 16):
                setattr(self, name, getattr(self, name) + len(chunk))
                target.write(chunk)
                await target.drain()
        except OSError:
            pass
        finally:
            target.close()


class Counted(Federation):
    """A federation whose nodes go through the relay."""

    relay: Relay

    def start_node(self, partition: int) -> None:
        if not hasattr(self, "relay"):
            self.relay = Relay(self.port)
            time.sleep(0.5)
        port, self.port = self.port, self.relay.port
        try:
            super().start_node(partition)
        finally:
            self.port = port

    def counted(self) -> tuple[int, int]:
        return self.relay.down, self.relay.up


def main() -> None:
    nodes, rounds, idle = 2, 3, 20.0
    config = f'task="network" hidden="1024 1024" local-steps=5 draws=0 rounds={rounds} timeout=120.0'
    with (
        tempfile.TemporaryDirectory(prefix="mast-") as home,
        Counted(Path(home), nodes, simulation=False, tls=False) as federation,
    ):
        time.sleep(5)
        begun = federation.counted()
        time.sleep(idle)
        polling = [(now - then) / idle / nodes for then, now in zip(begun, federation.counted(), strict=True)]
        begun, start = federation.counted(), time.monotonic()
        run = federation.submit(f'{config} out="{home}"')
        federation.wait(run, 600)
        took = time.monotonic() - start
        wire = [now - then for then, now in zip(begun, federation.counted(), strict=True)]
        rows = mast.Result.load(home).rows
    records = [sum(row[kind] for row in rows) for kind in ("down", "up")]
    print(f"polling of an idle node: {polling[0]:.0f} bytes/s down, {polling[1]:.0f} up")
    for name, total, own, rate in zip(("down", "up"), wire, records, polling, strict=True):
        polled = rate * nodes * took
        rest = total - own - polled
        print(f"{name}: {total} bytes in all: {own} records, {polled:.0f} polling, {rest:.0f} others")
    print("seconds per round:", [round(row["took"], 2) for row in rows])


if __name__ == "__main__":
    main()
