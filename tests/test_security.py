"""What the package must never do: run what a file says, trust a download, or listen to the world."""

import ast
from pathlib import Path

import pytest

import mast
from mast import data
from mast.data.catalogue import SETS

SOURCE = Path(mast.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

#: calls that run code from a text or a file
RUNS_CODE = {"eval", "exec", "compile", "__import__"}
UNPICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal"}
#: whose `load` and `dump` unpickle
LOADERS = {"torch", "np", "numpy", "joblib", "pandas"}
SHELLS = {("os", "system"), ("os", "popen"), ("pandas", "read_pickle"), ("pandas", "eval")}
EVERYWHERE = {"0.0.0.0", "::", "[::]"}


def called(node: ast.Call) -> tuple[str, str]:
    """The names of a call: ("torch", "load") for ``torch.load(...)``, ("", "eval") for ``eval(...)``."""
    function = node.func
    if isinstance(function, ast.Name):
        return "", function.id
    if isinstance(function, ast.Attribute):
        owner = function.value
        return owner.id if isinstance(owner, ast.Name) else "?", function.attr
    return "?", "?"


def option(node: ast.Call, name: str):
    """The constant that a keyword is given, or None."""
    found = [keyword.value for keyword in node.keywords if keyword.arg == name]
    return found[0].value if found and isinstance(found[0], ast.Constant) else None


def faults_of(tree: ast.AST) -> list[str]:
    """What is wrong with a module, each with its line."""
    found = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found += [f"line {line}: imports {name}" for name in names if name.split(".")[0] in UNPICKLES]
        if isinstance(node, ast.Constant) and node.value in EVERYWHERE:
            found.append(f"line {line}: the address {node.value!r} listens to everyone")
        if not isinstance(node, ast.Call):
            continue
        owner, name = called(node)
        if owner in ("", "builtins") and name in RUNS_CODE:
            found.append(f"line {line}: calls {name}")
        if (owner, name) in SHELLS or option(node, "shell") is True:
            found.append(f"line {line}: {owner}.{name} runs a shell or a pickle")
        if name == "load" and owner in LOADERS:
            safe = (
                option(node, "weights_only") is True
                if owner == "torch"
                else option(node, "allow_pickle") is False
            )
            if not safe:
                found.append(f"line {line}: {owner}.load without weights_only=True or allow_pickle=False")
        if option(node, "weights_only") is False or option(node, "allow_pickle") is True:
            found.append(f"line {line}: unpickling is allowed")
        if name in ("create_server", "bind") and node.args and isinstance(node.args[0], ast.Tuple):
            host = node.args[0].elts[0]
            if isinstance(host, ast.Constant) and host.value not in ("127.0.0.1", "localhost", "::1"):
                found.append(f"line {line}: listens at {host.value!r}")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_no_code_from_files_and_no_open_doors(file):
    assert not faults_of(ast.parse(file.read_text()))


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from dill import loads",
        "eval('1')",
        "builtins.exec(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "joblib.load(path)",
        "subprocess.run(command, shell=True)",
        "os.system('ls')",
        "server.bind(('0.0.0.0', 80))",
        "socket.create_server(('', 80))",
        "HOST = '::'",
    ],
)
def test_each_fault_is_seen(code):
    """The guard itself: it would not pass what it is there for."""
    assert faults_of(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "json.load(file)",
        "model.eval()",
        "re.compile('a')",
        "socket.create_server(('127.0.0.1', 0))",
    ],
)
def test_what_is_harmless_passes(code):
    assert not faults_of(ast.parse(code))


def test_downloads_are_checked_by_sums_and_come_over_tls():
    """A published sum is a SHA-256; sets without one are trusted once (see tests/data/test_download.py)."""
    for known in SETS.values():
        assert known.address.startswith("https://")
        assert known.sha256 is None or len(bytes.fromhex(known.sha256)) == 32
    assert data.SETS["a1a"].sha256


def test_only_the_data_room_uses_the_network_to_fetch():
    """Whoever downloads goes through `mast.data.download`, which bounds and checks it."""
    for file in FILES:
        room = file.relative_to(SOURCE).parts[0]
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            fetching = [
                n for n in names if n.split(".")[0] in ("requests", "httpx", "pooch") or n == "urllib.request"
            ]
            assert not fetching or room == "data", f"{file.relative_to(SOURCE)} imports {fetching}"
