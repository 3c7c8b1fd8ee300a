"""Identities: values, functions and objects as text that tells them from others, the same in every process.

Of what is the user's own, the source counts too, and all that it reaches: the functions, classes, data and
modules that it names, also those of other files. Packages that are installed count by their names.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import inspect
import re
import sys
import types
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np

from mast.support import files
from mast.support.sources import (
    file_of,
    file_of_module,
    imported_modules,
    is_own,
    loaded_names,
    source_of,
    written_attributes,
    written_names,
)

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
