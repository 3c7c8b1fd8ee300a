"""Identities: values, functions and objects as text that tells them from others, the same in every process.

Of what is the user's own, the source counts too, and all that it reaches: the functions, classes, data and
modules that it names, also those of other files. Packages that are installed count by their names.
"""

from __future__ import annotations

import ast
import dis
import functools
import importlib.machinery
import inspect
import re
import sys
import sysconfig
import textwrap
import types
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import numpy as np

from mast.support import files

#: methods of lists, dicts and sets that change them
_CHANGES = {"append", "extend", "insert", "pop", "remove", "clear", "add", "discard", "update", "setdefault"}
_ASKED = ("LOAD_ATTR", "LOAD_METHOD")
_HERE = Path(__file__).resolve().parents[1]
_PYTHON = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
#: methods that are called again and again: what they write to is no part of an object
_CALLED = ("__call__", "forward", "value", "gradient", "value_and_gradient", "start", "step", "advance")
#: modules as checkpoints name them that were written before these moved
_WRITTEN_AS = {
    "mast.distributed.nodes": "mast.methods.distributed.nodes",
    "mast.distributed.messages": "mast.methods.distributed.messages",
    "mast.engines.flower.clients": "mast.federated.clients",
    "mast.engines.flower.training": "mast.federated.training",
}
_SPARSE = ("data", "indices", "indptr", "row", "col", "coords", "offsets", "rows")


def describe(value: Any) -> str:
    """A value as text that tells it from others, whatever process it is in.

    Arrays, tensors and tables count by their content, functions and classes of the user's own by their source
    and by what that reaches, objects by their attributes, sketches by their arguments. What a function itself
    writes to, such as a counter or a cache, is no part of it.

    >>> import mast
    >>> describe(mast.RandK(3)), describe([0.5, None])
    ("RandK({'k': 3})", '[0.5, None]')
    """
    try:
        return _Describer().text(value)
    except RecursionError:
        return f"{type(value).__name__}, nested too deeply"


class _Describer:
    """One description: remembers what it has met, so that each thing is looked at once and cycles end."""

    def __init__(self) -> None:
        self.known: dict[Any, tuple[Any, str]] = {}  # with the value, so that no other gets its id meanwhile

    def text(self, value: Any, without: Iterable[str] = ()) -> str:
        if isinstance(value, np.generic):
            return repr(value.item())
        if value is None or isinstance(value, bool | int | float | complex | str):
            return repr(value)
        if id(value) not in self.known:
            self.known[id(value)] = value, "itself"
            self.known[id(value)] = value, self._text(value, set(without))
        return self.known[id(value)][1]

    def _text(self, value: Any, without: set[str]) -> str:
        if isinstance(value, list | tuple | deque):
            return "[" + ", ".join(map(self.text, value)) + "]"
        if isinstance(value, dict | types.MappingProxyType):
            return (
                "{" + ", ".join(f"{self.text(key)}: {self.text(part)}" for key, part in value.items()) + "}"
            )
        if isinstance(value, set | frozenset):
            return "{" + ", ".join(sorted(map(self.text, value))) + "}"
        if isinstance(value, bytes | bytearray):
            return files.digest(bytes(value))
        if isinstance(value, functools.partial):
            return f"{self.text(value.func)}({self.text(value.args)}, {self.text(value.keywords)})"
        if isinstance(value, types.MethodType):
            written = written_names(value.__func__)
            return f"{self.text(value.__func__)} of {self.text(value.__self__, written_attributes(written))}"
        if isinstance(value, types.ModuleType):
            return self._module(value.__name__, getattr(value, "__file__", None))
        if isinstance(value, type):
            return self._class(value)
        for inner in ("py_func", "__wrapped__"):  # of compiled, cached and decorated functions
            if callable(getattr(value, inner, None)) and not is_own(file_of(value)):
                return f"{type(value).__name__} of {self.text(getattr(value, inner))}"
        if isinstance(value, types.FunctionType) and is_own(file_of(value)):
            return self._function(value)
        if hasattr(value, "__qualname__"):
            return _name_of(value)
        return self._array(value) or self._object(value, without)

    # ---- data ------------------------------------------------------------------------------

    def _array(self, value: Any) -> str:
        """An array, a tensor, a sparse matrix or a table by its content; "" for anything else."""
        if isinstance(value, np.ndarray):
            return self.text([value.shape, value.tolist()]) if value.dtype.hasobject else files.digest(value)
        torch, sparse, pandas = map(sys.modules.get, ("torch", "scipy.sparse", "pandas"))
        if torch is not None and isinstance(value, torch.Tensor):
            head = f"{value.dtype} of shape {tuple(value.shape)}"
            if value.is_meta:
                return head
            plain = value.detach().cpu().to_dense() if value.is_sparse else value.detach().cpu()
            flat = plain.resolve_conj().resolve_neg().contiguous().reshape(-1)
            return f"{head} {files.digest(flat.view(torch.uint8).numpy())}"
        if sparse is not None and sparse.issparse(value):
            parts = [getattr(value, name) for name in _SPARSE if hasattr(value, name)]
            return f"{value.format} of shape {value.shape} {files.digest(self.text(parts))}"
        if pandas is not None and isinstance(value, pandas.DataFrame):
            columns = [value.iloc[:, i].to_numpy() for i in range(value.shape[1])]
            table = [value.index.to_numpy(), value.columns.to_numpy(), list(map(str, value.dtypes)), columns]
            return f"table of shape {value.shape} {files.digest(self.text(table))}"
        if pandas is not None and isinstance(value, pandas.Series):
            return self.text(value.to_frame())
        return ""

    def _object(self, value: Any, without: set[str]) -> str:
        """Its kind, its source if that is the user's own, and its attributes."""
        kind, torch = type(value), sys.modules.get("torch.nn")
        own = is_own(file_of(kind))
        for called in _CALLED if own else ():
            without |= written_attributes(written_names(getattr(kind, called, None)))
        content = _attributes_of(value)
        if hasattr(value, "arguments") and callable(value.arguments):
            content = value.arguments()
        elif torch is not None and isinstance(value, torch.Module):
            without |= vars(torch.Module()).keys() - {"_parameters", "_buffers", "_modules"}
        elif not own:
            content = {name: part for name, part in content.items() if not name.startswith("_")}
            pythons = kind.__module__.split(".")[0] in sys.stdlib_module_names
            if not content or (pythons and kind is not types.SimpleNamespace):
                shown = cast(Any, kind).__repr__ is not object.__repr__
                return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value)) if shown else kind.__name__
        kept = {name: part for name, part in content.items() if name not in without}
        return f"{self.text(kind) if own else kind.__name__}({self.text(kept)})"

    # ---- sources ---------------------------------------------------------------------------

    def _function(self, function: types.FunctionType) -> str:
        """Its name, and a sum of its source and of all that it reaches."""
        code, written = function.__code__, written_names(function)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        reached: dict[str, str] = {}
        for name, attributes in loaded_names(code):
            if name in written or name in reached:
                continue
            if name in cells:
                try:
                    value = cells[name].cell_contents
                except ValueError:  # not given a value yet
                    continue
            elif name in function.__globals__:
                value = function.__globals__[name]
            else:
                continue  # one of Python's own
            reached[name] = self.text(value, written_attributes(written, name))
            while isinstance(value, types.ModuleType) and is_own(file_of(value)) and attributes:
                name, value = f"{name}.{attributes[0]}", getattr(value, attributes.pop(0), None)
                reached[name] = self.text(value)
        package = function.__globals__.get("__package__") or ""
        imported = sorted({self._module(name) for name in imported_modules(code, package)})
        own = {name: v for name, v in vars(function).items() if f"{function.__name__}.{name}" not in written}
        given = [function.__defaults__, function.__kwdefaults__, own]
        total = files.digest(
            source_of(code) or self._code(code), sorted(reached.items()), imported, self.text(given)
        )
        return f"{function.__qualname__} {total}"

    def _code(self, code: types.CodeType) -> str:
        """Of code without a source, such as that of a prompt or a lambda."""
        constants = [self._code(c) if isinstance(c, types.CodeType) else self.text(c) for c in code.co_consts]
        names = code.co_names, code.co_varnames, code.co_freevars
        return files.digest(code.co_code, constants, names, code.co_argcount, code.co_kwonlyargcount)

    def _class(self, kind: type) -> str:
        if not is_own(file_of(kind)):
            return _name_of(kind)
        source, parts = source_of(kind), {}
        for name, value in vars(kind).items():
            if isinstance(value, staticmethod | classmethod):
                value = value.__func__
            elif isinstance(value, functools.cached_property):
                value = value.func
            elif isinstance(value, property):
                value = value.fget
            function = isinstance(value, types.FunctionType)
            if function and source and value.__code__.co_filename.startswith("<"):
                continue  # made for the class, as those of a dataclass
            if function or not (name.startswith(("__", "_abc_")) or inspect.isdatadescriptor(value)):
                parts[name] = self.text(value)
        bases = [self.text(base) for base in kind.__bases__]
        return f"{kind.__qualname__} {files.digest(source, bases, sorted(parts.items()))}"

    def _module(self, name: str, file: str | None = None) -> str:
        """Its name; if it is the user's own also a sum of its source and of what it imports."""
        file = file or file_of_module(name)
        if file is None or not Path(file).is_file() or not is_own(file):
            return name
        if file not in self.known:
            self.known[file] = None, "itself"
            package = name if Path(file).stem == "__init__" else name.rpartition(".")[0]
            content = Path(file).read_bytes()
            try:
                loader = importlib.machinery.SourceFileLoader(name, file)
                code, source = loader.source_to_code(content, file), ast.unparse(ast.parse(content))
            except (SyntaxError, ValueError):  # a compiled module
                total = files.digest(content)
            else:
                imported = sorted({self._module(other) for other in imported_modules(code, package)})
                total = files.digest(source, imported)
            self.known[file] = None, f"{name.rpartition('.')[2]} {total}"
        return self.known[file][1]


def _name_of(value: Any) -> str:
    """The name of a function or a class that is not the user's own."""
    return f"{_WRITTEN_AS.get(value.__module__, value.__module__)}.{value.__qualname__}"


def _attributes_of(value: Any) -> dict[str, Any]:
    """All attributes of an object but those that it computed once and keeps."""
    kind = type(value)
    names = [*getattr(value, "__dict__", ())]
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else [*slots]
    computed = {
        name
        for base in kind.__mro__
        for name, v in vars(base).items()
        if isinstance(v, functools.cached_property)
    }
    return {
        name: getattr(value, name)
        for name in names
        if name not in computed and name not in ("__dict__", "__weakref__") and hasattr(value, name)
    }


# ---- the user's own code: what a function loads, writes to and imports ------------------------------------


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
