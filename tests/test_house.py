"""The manners of the house that a program can check; each check returns one line per offence, naming file and line.

Rules and how they are counted: a file has at most 400 lines; a function at most 40, from its first statement after the
docstring to its end; at most 6 parameters, without self and cls, and without keyword-only ones that have a default (a
caller need not know those); at most 3 levels of blocks in blocks (elif and else do not nest).
"""

import ast
import functools
import pathlib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FILE_LINES, FUNCTION_LINES, PARAMETERS, LEVELS = 400, 40, 6, 3
ROOM_WITHOUT_A_NAME = {"utils.py", "util.py", "common.py", "helpers.py", "manager.py", "misc.py"}
DOCUMENTED = ("core", "tensor", "wire")  # every public name there says what holds afterwards
UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"}
UNSAFE_OF_TORCH = {"torch.load", "torch.save"}
UNSAFE_CALLS = {"recv_pyobj", "send_pyobj"}
# A wait by sleeping is a race that a slow machine loses. Files that must: {"tests/...": "why nothing else will do"}.
SLEEPS: dict[str, str] = {}
IGNORE = "# type" + ": ignore"  # in two pieces, or this file would offend
LEFT_OVER = ("TO" + "DO", "FIX" + "ME", "XX" + "X")  # in two pieces, or this file would offend

Function = ast.FunctionDef | ast.AsyncFunctionDef
Source = tuple[str, str, ast.Module]  # path from the root, text, tree


@functools.cache
def _parsed(text: str) -> ast.Module:
    """The tree of a text: ten checks look at the same files."""
    return ast.parse(text)


def sources(root: pathlib.Path, *folders: str) -> Iterator[Source]:
    """Yield every Python file of these folders."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            text = path.read_text()
            yield str(path.relative_to(root)), text, _parsed(text)


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield every function and method, inner ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def long_files(root: pathlib.Path) -> list[str]:
    """Files of more than FILE_LINES lines."""
    counts = ((place, len(text.splitlines())) for place, text, _ in sources(root, "zdiloco", "tests"))
    return [f"{place}: {count} lines, at most {FILE_LINES}" for place, count in counts if count > FILE_LINES]


def body_lines(function: Function) -> int:
    """Return the lines of a function from its first statement after the docstring to its end."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def long_functions(root: pathlib.Path) -> list[str]:
    """Functions of more than FUNCTION_LINES lines."""
    return [
        f"{place}:{each.lineno}: {each.name} has {body_lines(each)} lines, at most {FUNCTION_LINES}"
        for place, _, tree in sources(root, "zdiloco", "tests")
        for each in functions(tree)
        if body_lines(each) > FUNCTION_LINES
    ]


def parameter_count(function: Function) -> int:
    """Return how many parameters a caller has to know."""
    args = function.args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    needed = [arg for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
    stars = (args.vararg is not None) + (args.kwarg is not None)
    return len(names) - (names[:1] in (["self"], ["cls"])) + len(needed) + stars


def many_parameters(root: pathlib.Path) -> list[str]:
    """Functions of more than PARAMETERS parameters."""
    return [
        f"{place}:{each.lineno}: {each.name} has {parameter_count(each)} parameters, at most {PARAMETERS}"
        for place, _, tree in sources(root, "zdiloco", "tests")
        for each in functions(tree)
        if parameter_count(each) > PARAMETERS
    ]


BLOCKS = ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try | ast.TryStar | ast.Match


def depth(node: ast.AST) -> int:
    """Return how many blocks lie in one another below `node`; functions inside count on their own."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        elif_of_it = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, depth(child) + (isinstance(child, BLOCKS) and not elif_of_it))
    return deepest


def deep_functions(root: pathlib.Path) -> list[str]:
    """Functions with more than LEVELS levels of blocks."""
    return [
        f"{place}:{each.lineno}: {each.name} has {depth(each)} levels of blocks, at most {LEVELS}"
        for place, _, tree in sources(root, "zdiloco", "tests")
        for each in functions(tree)
        if depth(each) > LEVELS
    ]


def rooms_without_a_name(root: pathlib.Path) -> list[str]:
    """Files whose name says nothing of what is in them."""
    return [
        place for place, _, _ in sources(root, "zdiloco", "tests") if place.rpartition("/")[2] in ROOM_WITHOUT_A_NAME
    ]


def unsafe_loading(root: pathlib.Path) -> list[str]:
    """Whatever runs code that a file or a peer brought along: pickle and what is built on it."""
    lines = []
    for place, _, tree in sources(root, "zdiloco"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found = {alias.name for alias in node.names if alias.name.split(".")[0] in UNSAFE}
            elif isinstance(node, ast.ImportFrom):
                origin = node.module or ""
                names = [f"{origin}.{alias.name}" for alias in node.names]
                found = {name for name in names if origin.split(".")[0] in UNSAFE or name in UNSAFE_OF_TORCH}
            elif isinstance(node, ast.Attribute):
                name = ast.unparse(node)
                found = {name} if name in UNSAFE_OF_TORCH or node.attr in UNSAFE_CALLS else set()
            else:
                continue
            lines += [f"{place}:{node.lineno}: {name}" for name in sorted(found)]
    return lines


def sleeping_tests(root: pathlib.Path) -> list[str]:
    """Tests that wait by sleeping, without a reason in SLEEPS."""
    lines = []
    for place, _, tree in sources(root, "tests"):
        for node in ast.walk(tree):
            by_name = isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio")
            taken = by_name and any(alias.name == "sleep" for alias in node.names)
            called = isinstance(node, ast.Attribute) and ast.unparse(node) in ("time.sleep", "asyncio.sleep")
            if (taken or called) and place not in SLEEPS:
                lines.append(f"{place}:{node.lineno}: sleeps; wait for the event itself, with a limit")
    return lines


def _public(tree: ast.Module) -> Iterator[ast.AST]:
    yield tree
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            members = node.body if isinstance(node, ast.ClassDef) else []
            yield from (m for m in members if isinstance(m, Function | ast.ClassDef) and not m.name.startswith("_"))


def _derived(node: ast.AST) -> bool:
    """Say whether a name is documented elsewhere: setters and overloads belong to another definition."""
    decorators = [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])]
    return any(name.endswith((".setter", "overload", "override")) for name in decorators)


def undocumented(root: pathlib.Path) -> list[str]:
    """Public modules, classes, functions and methods of DOCUMENTED without a docstring; empty __init__.py are fine."""
    return [
        f"{place}:{getattr(node, 'lineno', 1)}: {getattr(node, 'name', 'the module')} has no docstring"
        for place, text, tree in sources(root, *(f"zdiloco/{folder}" for folder in DOCUMENTED))
        for node in _public(tree)
        if text.strip() and not _derived(node) and not ast.get_docstring(node)
    ]


def bare_excepts(root: pathlib.Path) -> list[str]:
    """`except:` without a class: it would swallow an interrupt."""
    return [
        f"{place}:{node.lineno}: bare except"
        for place, _, tree in sources(root, "zdiloco", "tests")
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]


def idle_ignores(root: pathlib.Path) -> list[str]:
    """Words to the type checker where it does not look: it reads zdiloco/ only."""
    return [
        f"{place}:{number}: no checker reads this"
        for place, text, _ in sources(root, "tests")
        for number, line in enumerate(text.splitlines(), 1)
        if IGNORE in line
    ]


def left_over(root: pathlib.Path) -> list[str]:
    """Notes of work not done, in code, scripts, settings and documents."""
    lines = []
    folders = ("zdiloco", "tests", "bin", "config", "docs", ".ci")
    inside = [path for folder in folders for path in (root / folder).rglob("*")]
    for path in sorted([*inside, *root.glob("*.md"), *root.glob("*.toml")]):
        if path.is_file() and path.suffix not in (".pyc", ".png", ".bin", ".gz"):
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                lines += [f"{path.relative_to(root)}:{number}: {word}" for word in LEFT_OVER if word in line]
    return lines


CHECKS = (
    long_files,
    long_functions,
    many_parameters,
    deep_functions,
    rooms_without_a_name,
    unsafe_loading,
    sleeping_tests,
    undocumented,
    bare_excepts,
    idle_ignores,
    left_over,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_house_is_in_order(check) -> None:
    """No file of the checkout offends."""
    lines = check(ROOT)
    assert not lines, "\n".join(lines)


DEEP = "def f():\n if 1:\n  for x in y:\n   with z:\n    if 2:\n     pass\n"
SEVEN = "class C:\n def f(self, a, b, c, *d, e, g, h, i=1): pass\n"
MUTE = '"""M."""\nclass C:\n "C."\n def f(self): pass\n'
CHAIN = "def f(a):\n if a: pass\n elif a: pass\n elif a: pass\n elif a: pass\n"
OFFENDERS = {
    "long_files": ("tests/a.py", "x = 1\n" * 401, "tests/a.py: 401 lines"),
    "long_functions": ("zdiloco/a.py", "def f():\n" + " x = 1\n" * 41, "zdiloco/a.py:1: f has 41 lines"),
    "many_parameters": ("zdiloco/a.py", SEVEN, "f has 7 parameters"),
    "deep_functions": ("zdiloco/a.py", DEEP, "f has 4 levels"),
    "rooms_without_a_name": ("zdiloco/core/utils.py", "", "zdiloco/core/utils.py"),
    "unsafe_loading import": ("zdiloco/a.py", "import pickle\n", "zdiloco/a.py:1: pickle"),
    "unsafe_loading name": ("zdiloco/a.py", "from torch import load\n", "zdiloco/a.py:1: torch.load"),
    "unsafe_loading call": ("zdiloco/a.py", "x.send_pyobj(1)\n", "zdiloco/a.py:1: x.send_pyobj"),
    "sleeping_tests": ("tests/a.py", "import time\ntime.sleep(1)\n", "tests/a.py:2: sleeps"),
    "sleeping_tests name": ("tests/a.py", "from time import sleep\n", "tests/a.py:1: sleeps"),
    "undocumented": ("zdiloco/core/a.py", MUTE, "a.py:4: f has no docstring"),
    "undocumented module": ("zdiloco/wire/a.py", "x = 1\n", "a.py:1: the module has no docstring"),
    "bare_excepts": ("zdiloco/a.py", "try: pass\nexcept: pass\n", "zdiloco/a.py:2: bare except"),
    "idle_ignores": ("tests/a.py", f"x = 1\ny = x  {IGNORE}[misc]\n", "tests/a.py:2: "),
    "left_over": ("docs/a.md", f"one\n{LEFT_OVER[0]} two\n", "docs/a.md:2: "),
}
INNOCENT = {
    "long_functions": ("zdiloco/a.py", 'def f():\n """' + "text\n" * 60 + '"""\n' + " x = 1\n" * 40),
    "many_parameters": ("zdiloco/a.py", "def f(a, b, c, d, e, f, *, g=1, h=2): pass\n"),
    "deep_functions": ("zdiloco/a.py", CHAIN),
    "unsafe_loading": ("zdiloco/a.py", "from torch import save_file\nx.load(1)\njson.load(f)\n"),
    "undocumented": ("zdiloco/core/a.py", '"""M."""\ndef _f(): pass\n'),
}


def _run(name: str, root: pathlib.Path, place: str, text: str) -> list[str]:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return next(check for check in CHECKS if check.__name__ == name.split()[0])(root)


@pytest.mark.parametrize("name", OFFENDERS)
def test_each_offence_is_named(name: str, tmp_path: pathlib.Path) -> None:
    """A tree with one fault: its check says where, and what."""
    place, text, fault = OFFENDERS[name]
    lines = _run(name, tmp_path, place, text)
    assert len(lines) == 1
    assert fault in lines[0]


@pytest.mark.parametrize("name", INNOCENT)
def test_what_only_looks_like_an_offence_passes(name: str, tmp_path: pathlib.Path) -> None:
    """Long docstrings, optional keywords, elif chains and other loads are no faults."""
    assert _run(name, tmp_path, *INNOCENT[name]) == []
