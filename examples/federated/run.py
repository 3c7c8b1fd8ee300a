"""Run this app on one machine, in simulation or on the deployment engine, and leave nothing running.

    python run.py simulation
    python run.py deployment --tls
    python run.py deployment --run-config 'task="network" rounds=10 local-steps=5' --out result

Both start a SuperLink on a free port of 127.0.0.1 and hand it the app with ``flwr run``; the second also
starts one SuperNode for each client. Everything ends with this script, on errors and on Ctrl-C too. If the
script itself is killed, a simulation lives on: docs/federated-deployment.md says how to end it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from certificates import make
from processes import Processes, end_with_parent

APP = Path(__file__).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # or Ray would listen on all addresses: this is 127.0.0.1
    # Everything is installed already; without this, `flwr run` makes a fresh environment from an index.
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # Ray lets clients wait for everything else that a busy machine does
    "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(200 * 2**20),
}


STARTING = 180.0  # seconds that the SuperLink may take, and every command of Flower's


class Federation:
    """A SuperLink, its SuperNodes, and what runs on them."""

    def __init__(self, home: Path, nodes: int, *, simulation: bool, tls: bool) -> None:
        self.home, self.nodes, self.simulation = home, nodes, simulation
        self.port = free_port()
        self.certificates = make(home / "certificates") if tls else None
        places = {"FLWR_HOME": str(home), "RAY_TMPDIR": str(home)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = os.environ | QUIET | places | {"PATH": path}
        self.processes = Processes(home, self.environment)
        self._configure()

    def _configure(self) -> None:
        """Where `flwr` finds the SuperLink."""
        lines = ["[superlink]", 'default = "here"', "[superlink.here]", f'address = "127.0.0.1:{self.port}"']
        if self.certificates is None:
            lines.append("insecure = true")
        else:
            lines.append(f"root-certificates = {json.dumps(str(self.certificates[0]))}")
        (self.home / "config.toml").write_text("\n".join(lines) + "\n")

    def __enter__(self) -> Federation:
        self.processes.__enter__()
        try:
            self.start_link()
            if not self.simulation:
                for partition in range(self.nodes):
                    self.start_node(partition)
        except BaseException:
            self.processes.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.processes.__exit__(None, None, None)

    def start_link(self) -> None:
        """Start the SuperLink, wait until it answers, and start what runs its apps, Ray among them."""
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", str(self.home / "state.db")]  # so that a restart knows its nodes
        command += ["--isolation", "process"]  # or it starts its SuperExec where no group reaches it
        if self.certificates is None:
            command.append("--insecure")
        else:
            authority, server, key = map(str, self.certificates)
            command += ["--ssl-ca-certfile", authority, "--ssl-certfile", server, "--ssl-keyfile", key]
        process = self.processes.start("superlink", *command, *["--simulation"] * self.simulation)
        deadline = time.monotonic() + STARTING
        while not listens(self.port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the SuperLink did not start:\n{self.processes.last_words('superlink')}")
            time.sleep(0.1)
        address = f"127.0.0.1:{self.port}"
        self.processes.start(
            "superexec", "flower-superexec", *self._secure(), "--runtime-api-address", address
        )

    def _secure(self) -> list[str]:
        """How a process trusts the SuperLink."""
        if self.certificates is None:
            return ["--insecure"]
        return ["--root-certificates", str(self.certificates[0])]

    def start_node(self, partition: int) -> None:
        """Start the SuperNode of a client."""
        self.processes.start(
            f"supernode-{partition}", "flower-supernode", *self._secure(),
            "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(free_port()),
            "--node-config", f"partition-id={partition} num-partitions={self.nodes}",
        )  # fmt: skip

    def flwr(self, *arguments: str, timeout: float = STARTING, shown: bool = False) -> str:
        """A command of Flower's; what it prints, unless it is shown."""
        pipe = None if shown else subprocess.PIPE
        try:
            done = subprocess.run(
                ["flwr", *arguments],
                env=self.environment,
                stdout=pipe,
                stderr=pipe,
                text=True,
                timeout=timeout,
                preexec_fn=end_with_parent,  # for one that Ctrl-C met while it was being started
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"flwr {' '.join(arguments)} took longer than {timeout:.0f} s") from None
        if done.returncode:
            said = f":\n{done.stdout or ''}{done.stderr or ''}"
            raise RuntimeError(f"flwr {' '.join(arguments)} failed{'' if shown else said}")
        return done.stdout or ""

    def submit(self, run_config: str) -> str:
        """Hand the app to the SuperLink; the number of the run."""
        command = [
            "run",
            str(APP),
            "here",
            "--run-config",
            f"nodes={self.nodes} {run_config}",
            "--format",
            "json",
        ]
        if self.simulation:
            resources = "client-resources-num-cpus=1 init-args-num-cpus=2"
            command += ["--federation-config", f"num-supernodes={self.nodes} {resources}"]
        said = last_json(self.flwr(*command))
        if not said.get("run-id"):
            raise RuntimeError(f"the SuperLink did not take the app: {said}")
        return str(said["run-id"])

    def status(self, run: str) -> dict[str, object]:
        """What the SuperLink says of a run: "status", "network-traffic", ..."""
        runs = last_json(self.flwr("ls", "here", "--format", "json"))["runs"]
        return next(row for row in runs if row["run-id"] == run)

    def wait(self, run: str, timeout: float, *, shown: bool = False) -> dict[str, object]:
        """Wait until a run is finished; its log streams until then, which costs less than asking often."""
        deadline = time.monotonic() + timeout
        while True:
            with suppress(RuntimeError):
                left = max(1.0, deadline - time.monotonic())
                self.flwr("log", run, "here", "--stream", timeout=left, shown=shown)
            status = self.status(run)
            if str(status["status"]).startswith("finished"):
                return status
            if time.monotonic() > deadline:
                raise TimeoutError(f"run {run} did not finish within {timeout:g} s (--timeout)")
            time.sleep(1.0)

    def log(self, run: str) -> str:
        """What the run's processes said."""
        return self.flwr("log", run, "here", "--show")


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def last_json(text: str) -> dict[str, object]:
    """The JSON that a command of Flower's ends with."""
    return json.loads(text[text.index("{") :])


def interrupted(number: int, frame: FrameType | None) -> None:
    """A polite request to end is an exit, so that everything is stopped."""
    sys.exit(128 + number)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=["simulation", "deployment"])
    parser.add_argument("--nodes", type=int, default=4, help="clients (default: 4)")
    parser.add_argument("--run-config", default="", help="what differs from pyproject.toml: 'rounds=10 ...'")
    parser.add_argument("--out", type=Path, help="folder for checkpoint, model, report and plot")
    parser.add_argument("--tls", action="store_true", help="make certificates and encrypt all connections")
    parser.add_argument(
        "--timeout", type=float, default=3600.0, help="seconds for the whole run (default: 3600)"
    )
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background shells switch it off
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    run_config = asked.run_config
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        run_config += f' out="{asked.out.resolve()}"'
    home = Path(tempfile.mkdtemp(prefix="mast-"))  # short: Ray's sockets are in it
    try:
        simulation = asked.engine == "simulation"
        with Federation(home, asked.nodes, simulation=simulation, tls=asked.tls) as federation:
            print("Started; Ctrl-C stops all of it.", flush=True)
            run = federation.submit(run_config)
            status = federation.wait(run, asked.timeout, shown=True)
            print(f"{status['status']}, {status['status-details']}; traffic: {status['network-traffic']}")
        return 0 if status["status"] == "finished:completed" else 1
    except (RuntimeError, TimeoutError) as error:
        print(f"{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; everything is stopped.", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
