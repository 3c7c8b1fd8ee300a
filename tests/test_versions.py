"""The versions that are promised are those that were tried."""

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_TESTED = {"check", "docs", "bench", "models", "release"}  # tools, in the versions of constraints.txt


def pins(name: str) -> dict[str, Version]:
    lines = (line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#"))
    return {
        canonicalize_name(r.name): Version(next(iter(r.specifier)).version) for r in map(Requirement, lines)
    }


def promised(extras: set[str]) -> list[Requirement]:
    texts = PROJECT["dependencies"] + [
        text for extra in extras for text in PROJECT["optional-dependencies"][extra]
    ]
    return [r for r in map(Requirement, texts) if r.name != PROJECT["name"]]


def test_the_oldest_versions_are_the_lower_bounds():
    oldest = pins("oldest.txt")
    for requirement in promised(set(PROJECT["optional-dependencies"]) - NOT_TESTED):
        bounds = [Version(s.version) for s in requirement.specifier if s.operator == ">="]
        assert bounds == [oldest[canonicalize_name(requirement.name)]], requirement


def test_the_newest_versions_are_within_the_bounds():
    newest = pins("constraints.txt")
    for requirement in promised(set(PROJECT["optional-dependencies"])):
        assert newest[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_what_everybody_installs_is_held_back_for_nobody():
    """What another library asks for stands in the extra that brings it."""
    for requirement in map(Requirement, PROJECT["dependencies"]):
        assert [s.operator for s in requirement.specifier] == [">="], requirement


def test_this_python_is_named():
    assert f"Programming Language :: Python :: 3.{sys.version_info.minor}" in PROJECT["classifiers"]
