"""Python sources that are read as syntax trees and edited as bytes.

A patch finds its place by structure (`ast`) and changes only the bytes of the nodes that it means,
so that everything else in the file, comments included, stays as it was.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """Replace the bytes from `start` to `end` with `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Finding:
    """What a patch found.

    `state`: applied, upstream, needed, drifted or not-applicable. `sites`: places that the patch
    edits, or has edited, in this tree. `edits`: what to do where it is needed. `missing`: packages
    that would have to be there.
    """

    state: str
    reason: str
    sites: int = 0
    edits: dict[Path, list[Edit]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


class DriftError(Exception):
    """The source has none of the shapes that a patch knows; says what was not found."""


class Source:
    """One file's bytes with their syntax tree.

    Raises:
        SyntaxError: it is not Python.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.tree = ast.parse(data)
        self._lines = [0]
        for line in data.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def start(self, node: ast.AST) -> int:
        """Where `node` begins, in bytes."""
        return self._lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined, no-any-return]

    def end(self, node: ast.AST) -> int:
        """Where `node` ends, in bytes."""
        return self._lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined, no-any-return]

    def text(self, node: ast.AST) -> str:
        """The source of `node`."""
        return self.data[self.start(node) : self.end(node)].decode()

    def before(self, statement: ast.stmt, line: str) -> Edit:
        """Put `line` as a statement of its own before `statement`, equally indented."""
        begin = self._lines[statement.lineno - 1]
        return Edit(begin, begin, " " * statement.col_offset + line + "\n")

    def after(self, statement: ast.stmt, line: str) -> Edit:
        """Put `line` as a statement of its own after `statement`, equally indented."""
        end = self.end(statement)
        return Edit(end, end, "\n" + " " * statement.col_offset + line)

    def after_imports(self, code: str) -> Edit:
        """Put a top-level definition after the imports that open the file."""
        last: ast.stmt | None = None
        for statement in self.tree.body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                last = statement
            elif isinstance(statement, ast.ClassDef | ast.FunctionDef):
                break
        end = self.end(last) if last is not None else 0
        rest = "" if self.data[end:].startswith(b"\n\n\n") else "\n"
        return Edit(end, end, "\n\n\n" + code.strip() + rest)


def edited(data: bytes, edits: list[Edit]) -> bytes:
    """`data` with all `edits` made; edits at one place keep their order.

    Raises:
        ValueError: two edits overlap.
    """
    out, position = [], 0
    for edit in sorted(edits, key=lambda one: (one.start, one.end)):
        if edit.start < position:
            raise ValueError("two edits overlap")
        out += [data[position : edit.start], edit.text.encode()]
        position = edit.end
    return b"".join([*out, data[position:]])


class Workspace:
    """Files under one or more package folders, read once and edited in memory."""

    def __init__(self, *roots: Path) -> None:
        self.roots = roots
        self.before: dict[Path, bytes] = {}
        self.now: dict[Path, bytes] = {}
        self._read: dict[Path, Source] = {}

    def locate(self, relative: str) -> Path | None:
        """The first of the roots' files (or folders) of that name; None when there is none."""
        for root in self.roots:
            if (root / relative).exists():
                return root / relative
        return None

    def find(self, relative: str) -> tuple[Path, Source]:
        """The file of that name, read.

        Raises:
            DriftError: there is none.
        """
        path = self.locate(relative)
        if path is None:
            raise DriftError(f"{relative} is missing")
        return path, self.open(path)

    def open(self, path: Path) -> Source:
        """The file as edited so far.

        Raises:
            SyntaxError: it is not Python.
        """
        if path not in self.now:
            self.before[path] = self.now[path] = path.read_bytes()
        read = self._read.get(path)
        if read is None or read.data != self.now[path]:
            read = self._read[path] = Source(self.now[path])
        return read

    def edit(self, edits: dict[Path, list[Edit]]) -> None:
        """Make the edits in memory."""
        for path, wanted in edits.items():
            self.now[path] = edited(self.now[path], wanted)

    def changed(self) -> dict[Path, bytes]:
        """The files that differ from what was read."""
        return {path: data for path, data in self.now.items() if data != self.before[path]}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def same(one: ast.AST, other: ast.AST) -> bool:
    """Whether two trees are equal but for their places in the file."""
    return ast.dump(one) == ast.dump(other)


def class_named(tree: ast.Module, name: str) -> ast.ClassDef | None:
    """The top-level class of that name."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    return None


def methods(tree: ast.Module, name: str) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
    """Every method of that name with its top-level class."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == name:
                    yield node, item


def function_named(body: list[ast.stmt], name: str) -> ast.FunctionDef | None:
    """The function of that name in `body` (of a module or class)."""
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    return None


def calls(node: ast.AST, name: str) -> list[ast.Call]:
    """Calls of the plain name `name` anywhere below `node`."""
    return [
        call
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name
    ]


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a call's keyword argument."""
    return next((item.value for item in call.keywords if item.arg == name), None)


def parameters(function: ast.FunctionDef) -> list[str]:
    """Names of the parameters, `self` included."""
    return [item.arg for item in (*function.args.args, *function.args.kwonlyargs)]


def mentions(node: ast.AST, value: str) -> bool:
    """Whether the string constant `value` stands anywhere below `node`."""
    return any(isinstance(item, ast.Constant) and item.value == value for item in ast.walk(node))


def is_name(node: ast.AST | None, name: str) -> bool:
    """Whether `node` is the plain name `name`."""
    return isinstance(node, ast.Name) and node.id == name


def helper_state(tree: ast.Module, code: str) -> str:
    """Whether our helper function is `absent` in the file, the `same`, or `different`."""
    wanted = ast.parse(code).body[0]
    if not isinstance(wanted, ast.FunctionDef):
        raise TypeError("a helper is one function")
    found = function_named(tree.body, wanted.name)
    if found is None:
        return "absent"
    return "same" if same(found, wanted) else "different"
