"""An example beside its baselines: the same run where every node holds everything, and the largest class.

    python compare.py linear.toml

Where every node holds everything the server's mean is FedAvg's, weighted by nodes.
"""

import collections
import sys
import tempfile
import tomllib
from pathlib import Path

import mast
import mast.cluster
from mast import Result


def run(path: Path, everything: bool = False) -> Result:
    """The run of a settings file in this process; or the same where every node holds everything."""
    content = tomllib.loads(path.read_text())
    content["run"] |= {"out": tempfile.mkdtemp(), "progress": False}
    if everything:
        nodes = content["nodes"]
        nodes["count"] = nodes.get("count") or len(nodes["capacities"])
        nodes.pop("capacities", None)
        nodes["capacity"] = "identity"
    return mast.cluster.run(content, folder=path.parent)


def largest_class(path: Path) -> float:
    """The share of the most frequent label among the rows that are scored."""
    content = tomllib.loads(path.read_text())
    if content["model"]["kind"] == "network":
        import digits

        labels = digits.test()[1].tolist()
    else:
        labels = mast.data.load(content["data"]["file"])[1].tolist()
    return max(collections.Counter(labels).values()) / len(labels)


def main(name: str) -> None:
    """Print scores and bytes."""
    path = Path(name)
    for words, result in (("its part", run(path)), ("everything", run(path, everything=True))):
        megabytes = result.trace["bytes"].iloc[-1] / 1e6
        print(f"every node holds {words}: {result.metric} {result.score:.3f}, {megabytes:.1f} MB")
    print(f"the largest class: {largest_class(path):.3f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "linear.toml")
