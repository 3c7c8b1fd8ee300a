"""The user's own code: which files are the user's, and what a function loads, writes to and imports."""

from __future__ import annotations

import ast
import dis
import functools
import importlib.machinery
import inspect
import sys
import sysconfig
import textwrap
import types
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

#: methods of lists, dicts and sets that change them
_CHANGES = {"append", "extend", "insert", "pop", "remove", "clear", "add", "discard", "update", "setdefault"}
_ASKED = ("LOAD_ATTR", "LOAD_METHOD")
_HERE = Path(__file__).resolve().parents[1]
_PYTHON = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}


@functools.cache
def is_own(file: str | None) -> bool:
    """Whether a file is the user's own: not Python's, not MAST's, not an installed package's."""
    if not file or file.startswith("<"):  # such as <stdin>, a prompt
        return bool(file) and not str(file).startswith("<frozen")
    path = Path(file).resolve()
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return not installed and not any(path.is_relative_to(folder) for folder in (*_PYTHON, _HERE))


def file_of(value: Any) -> str | None:
    """The file that a function, a class or a module comes from; that of a prompt is <stdin>."""
    if isinstance(value, types.FunctionType):
        return value.__code__.co_filename
    if isinstance(value, type):
        module = sys.modules.get(value.__module__)
        if module is None or (value.__module__ == "__main__" and not hasattr(module, "__file__")):
            return "<stdin>"
        return getattr(module, "__file__", None)
    return getattr(value, "__file__", None) if isinstance(value, types.ModuleType) else None


def file_of_module(name: str) -> str | None:
    """The file of a module, which need not have been imported yet; nothing is run to find it."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    spec, path = None, None
    for end in (i for i, letter in enumerate(f"{name}.") if letter == "."):
        try:
            spec = importlib.machinery.PathFinder.find_spec(name[:end], path)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return None if spec is None else spec.origin


def imported_modules(code: types.CodeType, package: str) -> Iterator[str]:
    """The modules that code imports when it runs, with those above them."""
    for inner in _with_inner(code):
        steps = list(dis.get_instructions(inner))
        for at, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":  # after the level and the names are loaded
                yield from _imported_from(
                    step.argval, steps[at - 2].argval, steps[at - 1].argval or (), package
                )


def _imported_from(module: str, level: int, names: Iterable[str], package: str) -> Iterator[str]:
    parents = package.split(".")[: len(package.split(".")) - level + 1] if level else []
    parts = [*parents, *module.split(".")] if module else parents
    yield from (".".join(parts[: i + 1]) for i in range(len(parts)))
    yield from (name for name in (".".join([*parts, n]) for n in names) if file_of_module(name))


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and that of the functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)


def loaded_names(code: types.CodeType) -> Iterator[tuple[str, list[str]]]:
    """The names that code takes from outside, each with the attributes that it asks of it at once."""
    for inner in _with_inner(code):
        free = set(code.co_freevars) & set(inner.co_freevars)
        steps = list(dis.get_instructions(inner))
        for at, step in enumerate(steps):
            name = step.argval if isinstance(step.argval, str) else ""
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") or (name in free and "LOAD" in step.opname):
                asked = takewhile(lambda after: after.opname in _ASKED, steps[at + 1 :])
                yield name, [str(after.argval) for after in asked]


def written_names(function: Any) -> set[str]:
    """The names that a function gives other values or changes, such as `calls`, `self.calls` and `seen`."""
    code = getattr(function, "__code__", None)
    if code is None:
        return set()
    steps = (step for inner in _with_inner(code) for step in dis.get_instructions(inner))
    names = {str(step.argval) for step in steps if step.opname in ("STORE_GLOBAL", "STORE_DEREF")}
    source = source_of(code)
    for node in ast.walk(ast.parse(source)) if source else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
            names.add(_dotted(node.func.value))
        elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            names.add(_dotted(node))
    first = code.co_varnames[:1] if code.co_argcount else ()
    return names | {
        f"self.{name.partition('.')[2]}" for name in names if name.startswith(f"{''.join(first)}.")
    }


def _dotted(node: ast.AST) -> str:
    """`name` or `name.attribute` of what an expression begins with."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def written_attributes(written: set[str], name: str = "self") -> set[str]:
    """Those of a name's attributes that are written to."""
    return {text.split(".")[1] for text in written if text.startswith(f"{name}.")}


def source_of(value: Any) -> str:
    """The source of a function or a class, without comments and layout; nothing where it cannot be had."""
    if isinstance(value, types.CodeType) and value.co_name == "<lambda>":
        return ""  # the line that it stands in has more than that
    try:
        return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(value))))
    except (OSError, TypeError, SyntaxError, ValueError):
        return ""
