"""Imports go down only: the floors of the house, read from the source by its syntax tree.

Rule: a unit (a folder of zdiloco, or a file on its top level) imports only units of a lower floor. Units without a
floor of their own in FLOORS stand just above the highest unit they import, so a new one needs no entry here, and can be
imported only from above. Imports inside functions count; so do those under `if TYPE_CHECKING`, except as circles.
"""

import ast
import dataclasses
import functools
import pathlib
import sys
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FACE = "zdiloco"  # zdiloco/__init__.py, what users import

CONFIG_USERS = ("cli", "bench", "chaos", "demo", "api", FACE, "config")
FLOORS = {
    "cli": 6.0,
    "doctor": 5.8,
    "bench": 5.8,
    "chaos": 5.8,
    "demo": 5.7,
    FACE: 5.5,
    "api": 5.4,
    "config": 5.0,
    "plan": 4.5,
    "node": 4.0,
    "rundir": 3.5,
    "wanlab": 3.5,
    "sim": 4.0,
    "wire": 3.0,
    "whatif": 2.8,
    "goodput": 2.7,
    "strip": 2.7,
    "lives": 2.6,
    "scribe": 2.6,
    "trace": 2.5,
    "plots": 2.5,
    "train": 2.0,
    "tensor": 2.0,
    "core": 2.0,
    "errors": 1.0,
    "units": 1.0,
}
# Of the standard library, what core/ must not know: clocks, chance, threads, files, sockets, logs.
NOT_IN_CORE = {
    *("time", "datetime", "random", "secrets", "uuid", "logging", "warnings"),
    *("threading", "_thread", "multiprocessing", "concurrent", "subprocess", "asyncio", "queue", "signal", "sched"),
    *("os", "io", "pathlib", "shutil", "tempfile", "glob", "mmap", "fcntl", "ctypes", "pickle"),
    *("socket", "selectors", "select", "ssl"),
}
CALLS_NOT_IN_CORE = {"open", "print", "input", "eval", "exec", "__import__"}
SOCKETS = {"zmq", "socket", "selectors", "asyncio"}
SOCKETS_ALLOWED_ABOVE = 3.0  # wire/ is bytes, still no sockets


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Import:
    """One import: where it stands, which unit does it, the full name it takes in, and whether only for types."""

    place: str
    module: str
    unit: str
    target: str
    typing_only: bool


@functools.cache
def _parsed(text: str) -> ast.Module:
    """The tree of a text: several checks look at the same files."""
    return ast.parse(text)


def modules(root: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return every module under root/zdiloco: dotted name -> file."""
    found = {}
    for path in sorted((root / "zdiloco").rglob("*.py")):
        parts = list(path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def unit_of(module: str) -> str:
    """Return the unit of a zdiloco module: its first folder or file, or FACE."""
    return module.split(".")[1] if "." in module else FACE


def _statements(tree: ast.AST, typing_only: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, typing_only
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for inner in node.body:
                yield from _statements(ast.Module([inner], []), True)
            for inner in node.orelse:
                yield from _statements(ast.Module([inner], []), typing_only)
        else:
            yield from _statements(node, typing_only)


def imports(root: pathlib.Path) -> list[Import]:
    """Return every import of zdiloco; `from a import b` counts as a.b if that is a module of ours, else as a."""
    found = []
    ours = modules(root)
    for module, path in ours.items():
        for node, typing_only in _statements(_parsed(path.read_text())):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            else:
                base = node.module or ""
                targets = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in ours else base for alias in node.names]
            place = f"{path.relative_to(root)}:{node.lineno}"
            found += [
                Import(place=place, module=module, unit=unit_of(module), target=target, typing_only=typing_only)
                for target in dict.fromkeys(targets)
            ]
    return found


def is_ours(target: str) -> bool:
    """Say whether an imported name lies in zdiloco."""
    return target == FACE or target.startswith(f"{FACE}.")


def floors(found: list[Import]) -> dict[str, float]:
    """Return the floor of every unit; one without an entry in FLOORS stands just above what it imports."""
    result = dict(FLOORS)
    below: dict[str, set[str]] = {}
    for each in found:
        below.setdefault(each.unit, set()).update({unit_of(each.target)} - {each.unit} if is_ours(each.target) else ())
        if is_ours(each.target):
            below.setdefault(unit_of(each.target), set())
    free = sorted(set(below) - set(FLOORS))
    for _ in free:  # once per unit is enough for the longest chain; a circle among them is caught elsewhere
        for unit in free:
            result[unit] = max((result.get(other, 0.0) for other in below[unit]), default=0.0) + 0.01
    return result


def upward(root: pathlib.Path) -> list[str]:
    """Return a line for every import between units that does not go down."""
    found = imports(root)
    level = floors(found)
    lines = []
    for each in found:
        other = unit_of(each.target)
        if is_ours(each.target) and other != each.unit and level[other] >= level[each.unit]:
            lines.append(
                f"{each.place}: {each.unit} (floor {level[each.unit]:g}) imports {each.target} (floor {level[other]:g})"
            )
    return lines


def _ways_from(start: str, edges: dict[str, set[str]]) -> list[str]:
    """Return one way "a -> b -> c" to every module that can be reached from start, itself included."""
    ways = {start: start}
    todo = [start]
    while todo:
        at = todo.pop()
        for following in sorted(edges[at] - set(ways)):
            ways[following] = f"{ways[at]} -> {following}"
            todo.append(following)
    return list(ways.values())


def circles(root: pathlib.Path) -> list[str]:
    """Return a line for every module that reaches itself through imports, with one way round."""
    ours = modules(root)
    edges: dict[str, set[str]] = {module: set() for module in ours}
    for each in imports(root):
        if each.target in ours and not each.typing_only and each.target != each.module:
            edges[each.module].add(each.target)
    ways = ((start, way) for start in ours for way in _ways_from(start, edges))
    return [f"{way} -> {start}" for start, way in ways if start in edges[way.split(" -> ")[-1]]]


def loud_core(root: pathlib.Path) -> list[str]:
    """Return a line for everything in core/ that is not the standard library, or not silent."""
    lines = []
    for each in imports(root):
        top = each.target.split(".")[0]
        if each.unit == "core" and not is_ours(each.target):
            if top not in sys.stdlib_module_names:
                lines.append(f"{each.place}: core imports {each.target}, not of the standard library")
            elif top in NOT_IN_CORE:
                lines.append(f"{each.place}: core imports {each.target}, which is not silent")
    for module, path in modules(root).items():
        for node in ast.walk(_parsed(path.read_text())) if unit_of(module) == "core" else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS_NOT_IN_CORE:
                lines.append(f"{path.relative_to(root)}:{node.lineno}: core calls {node.func.id}()")
    return lines


def low_sockets(root: pathlib.Path) -> list[str]:
    """Return a line for every import of sockets at or below the floor of wire/."""
    found = imports(root)
    level = floors(found)
    return [
        f"{each.place}: {each.unit} imports {each.target}; sockets live in node/"
        for each in found
        if each.target.split(".")[0] in SOCKETS and level[each.unit] <= SOCKETS_ALLOWED_ABOVE
    ]


def relative(root: pathlib.Path) -> list[str]:
    """Return a line for every relative import: those would hide from this file."""
    return [
        f"{path.relative_to(root)}:{node.lineno}: relative import"
        for path in modules(root).values()
        for node, _ in _statements(_parsed(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level > 0
    ]


def config_users(root: pathlib.Path) -> list[str]:
    """Return a line for every import of config.py by others than cli/, bench/, demo/ and the face."""
    return [
        f"{each.place}: {each.unit} imports {each.target}; only cli, bench, demo and the library face know every Params"
        for each in imports(root)
        if unit_of(each.target) == "config" and is_ours(each.target) and each.unit not in CONFIG_USERS
    ]


CHECKS = (upward, circles, loud_core, low_sockets, relative, config_users)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_house_stands(check) -> None:
    """No import of zdiloco offends."""
    assert len(modules(ROOT)) > 5
    lines = check(ROOT)
    assert not lines, "\n".join(lines)


OFFENDERS = {
    "upward": ("core/a.py", "def f():\n    from zdiloco.tensor import b\n", "core (floor 2) imports zdiloco.tensor.b"),
    "upward same floor": ("node/a.py", "import zdiloco.sim.b\n", "node (floor 4) imports zdiloco.sim.b"),
    "upward through a free unit": ("wire/a.py", "from zdiloco import late\n", "wire (floor 3) imports zdiloco.late"),
    "circles": ("wire/a.py", "from zdiloco.wire import b\n", "zdiloco.wire.a -> zdiloco.wire.b -> zdiloco.wire.a"),
    "loud_core clock": ("core/a.py", "import time\n", "core imports time"),
    "loud_core foreign": ("core/a.py", "from torch import Tensor\n", "core imports torch, not of the standard library"),
    "loud_core call": ("core/a.py", "print(1)\n", "core calls print()"),
    "low_sockets": ("wire/a.py", "import zmq\n", "wire imports zmq"),
    "relative": ("core/a.py", "from . import b\n", "relative import"),
    "config_users": ("late.py", "from zdiloco.config import X\n", "late imports zdiloco.config"),
}


@pytest.mark.parametrize("name", OFFENDERS)
def test_each_offence_is_named(name: str, tmp_path: pathlib.Path) -> None:
    """A small house with one wrong import: its check names the file, the line and the fault."""
    place, text, fault = OFFENDERS[name]
    for file, content in {
        "__init__.py": "",
        "config.py": "X = 1\n",
        "late.py": "from zdiloco.wire import b\n",
        "core/b.py": "import enum\nfrom zdiloco import errors\n",
        "tensor/b.py": "",
        "sim/b.py": "from zdiloco.wire import b\n",
        "wire/b.py": "from zdiloco.core import b\nfrom zdiloco.wire import a\n" if name == "circles" else "",
        "errors.py": "",
        place: text,
    }.items():
        path = tmp_path / "zdiloco" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    check = next(check for check in CHECKS if check.__name__ == name.split()[0])
    lines = check(tmp_path)
    assert any(fault in line for line in lines), lines
