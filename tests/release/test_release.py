"""The release: one version everywhere, complete archives, and installations that work without the source.

The archives are built here, or taken from the folder that MAST_DIST names (`make release`).
"""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import mast

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def listed(*patterns: str) -> set[str]:
    """Files of the source, as git sees them or would: without what tools left behind."""
    found = (path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file())
    return {str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts}


class TestFacts:
    def test_the_version_is_said_once(self):
        assert "version" in PROJECT["dynamic"]
        assert re.fullmatch(r"\d+\.\d+\.\d+", mast.__version__)
        citation = (ROOT / "CITATION.cff").read_text()
        assert re.search(r'^version: "(.*)"$', citation, re.M)[1] == mast.__version__
        assert re.search(r"^## (\S+?),", (ROOT / "CHANGELOG.md").read_text(), re.M)[1] == mast.__version__

    def test_the_paper_is_cited_with_its_authors(self):
        citation = (ROOT / "CITATION.cff").read_text()
        assert 'title: "MAST: Model-Agnostic Sparsified Training"' in citation
        names = re.findall(r"family-names: (\S+)", citation)
        assert names == ["Demidovich", "Malinovsky", "Shulgin", "Richtárik"]

    def test_the_least_python_is_a_declared_one(self):
        declared = {c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)}
        least = PROJECT["requires-python"].removeprefix(">=")
        assert least == min(declared, key=lambda version: int(version.split(".")[1]))

    def test_type_information_is_declared_and_there(self):
        assert "Typing :: Typed" in PROJECT["classifiers"]
        assert (Path(mast.__file__).parent / "py.typed").exists()


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    folder = os.environ.get("MAST_DIST")
    if folder is None:
        pytest.importorskip("build", reason="the extra [release] is not installed")
        folder = str(tmp_path_factory.mktemp("dist"))
        subprocess.run(
            [sys.executable, "-m", "build", "--outdir", folder, str(ROOT)], check=True, capture_output=True
        )
    place = ROOT / folder  # an absolute folder stays what it is
    return next(place.glob("*.whl")), next(place.glob("*.tar.gz"))


@pytest.mark.slow
class TestArchives:
    def test_the_wheel_holds_the_package_and_nothing_else(self, archives):
        with zipfile.ZipFile(archives[0]) as wheel:
            names = set(wheel.namelist())
        package = {name for name in names if name.startswith("mast/")}
        expected = {name.removeprefix("src/") for name in listed("src/mast/**/*")}
        assert {n for n in expected if not n.endswith((".nbi", ".nbc"))} == package
        assert "mast/py.typed" in package
        assert all(".dist-info/" in name for name in names - package)
        assert any(name.endswith("licenses/LICENSE") for name in names)

    def test_the_sdist_holds_all_that_makes_and_tests_it(self, archives):
        with tarfile.open(archives[1]) as sdist:
            names = {name.partition("/")[2] for name in sdist.getnames()}
        needed = listed(
            "src/**/*.py",
            "tests/**/*.py",
            "docs/**/*.md",
            "examples/*.py",
            "benchmarks/*.py",
            "studies/**/*.py",
            "*.md",
        )
        needed |= {"LICENSE", "CITATION.cff", "Makefile", "constraints.txt", "pyproject.toml", "conftest.py"}
        assert needed <= names, needed - names


@pytest.mark.slow
@pytest.mark.parametrize(("extras", "kind"), [("", "wheel"), ("", "sdist"), ("[all]", "wheel")])
def test_it_works_in_an_empty_environment(archives, extras, kind, tmp_path):
    python = _environment(tmp_path / "venv")
    archive = archives[0] if kind == "wheel" else archives[1]
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    subprocess.run([*install, f"{archive}{extras}"], check=True)
    subprocess.run([python, "-m", "pip", "check"], check=True)
    (tmp_path / "work").mkdir()
    smoke = [python, ROOT / "tests" / "release" / "smoke.py", "all" if extras else "core"]
    done = subprocess.run(smoke, cwd=tmp_path / "work", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all is well"


def _environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"
