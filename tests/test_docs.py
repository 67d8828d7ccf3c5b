"""Documents cannot rot: trees, commands, keys, links, exit codes and the example of the README are those of the code.

Rule: each check is a function from text to lines about what is wrong, and is tried on a text with that fault. Tables of
states (docs/protocol.md) and words (docs/glossary.md) are checked beside the code that they belong to.
"""

import ast
import fnmatch
import inspect
import itertools
import os
import pathlib
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest
import torch
from torch import nn

import zdiloco
from zdiloco import errors
from zdiloco.cli.main import INTERRUPTED, cli
from zdiloco.config import describe, from_tree, load
from zdiloco.node.syncer import SyncerNode

ROOT = pathlib.Path(__file__).parent.parent
README = ROOT / "README.md"
# Documents that tell how things are; decisions tell how they were, and what is to come.
CURRENT = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
ALL = sorted([*CURRENT, *ROOT.glob("docs/decisions/*.md")])
EXAMPLES = ROOT / "docs" / "examples"
EXAMPLE_LIMIT_S = 60.0
SCRIPT_LIMIT_S = 200.0


def names_of(paths: list[pathlib.Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def code_of(text: str) -> Iterator[str]:
    """Yield every line of code blocks (indented or fenced), and every code span."""
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line.strip()
        else:
            yield from re.findall(r"`([^`]+)`", line)


def spans_of(text: str) -> list[str]:
    """Return every code span outside code blocks."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in plain.splitlines() if not line.startswith("    ")]
    return [span for line in lines for span in re.findall(r"`([^`]+)`", line)]


# ---- commands


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the words of every `zdiloco ...` command line, without what comes after a #."""
    for code in code_of(text):
        found = re.match(r"(?:\S*/)?zdiloco\s+(.*)|\S*python\S* -m zdiloco\.cli\s+(.*)", code)
        if found:
            yield re.split(r"\s+#", found[1] or found[2] or "")[0].split()


def wrong_commands(text: str) -> list[str]:
    """Commands that do not exist, and options that they do not have."""
    return [fault for words in commands_in(text) for fault in _wrong_words(words)]


def _wrong_words(words: list[str]) -> list[str]:
    command: click.Command = cli
    for word in words:
        if word.startswith("-") and word != "-":  # which is standard input
            options = {text for parameter in command.params for text in parameter.opts}
            if word.split("=")[0] not in {*options, "--help", "-h"}:
                return [f"{command.name} has no option {word}: {' '.join(words)}"]
        elif isinstance(command, click.Group) and word in command.commands:
            command = command.commands[word]
        elif isinstance(command, click.Group) and not _is_value(words, word):
            return [f"there is no command {word}: {' '.join(words)}"]
    return []


def _is_value(words: list[str], word: str) -> bool:
    """Say whether a word is what an option before it is set to."""
    return words[max(words.index(word) - 1, 0)].startswith("-")


@pytest.mark.parametrize("name", names_of(CURRENT))
def test_every_command_exists_with_its_options(name: str) -> None:
    assert wrong_commands((ROOT / name).read_text()) == []


def test_commands_are_found_and_judged() -> None:
    good = "    bin/zdiloco sync run.toml --fresh --set a.b=1   # text\n`zdiloco --log-level debug status H:1 --json`\n"
    assert wrong_commands(good) == []
    assert len(list(commands_in(good))) == 2
    assert wrong_commands("`zdiloco dance`") == ["there is no command dance: dance"]
    assert wrong_commands("```\nzdiloco config paint run.toml\n```") != []
    assert wrong_commands("    python -m zdiloco.cli sync --frsh run.toml") == [
        "sync has no option --frsh: sync --frsh run.toml"
    ]
    assert {words[0] for words in commands_in(README.read_text())} == {*cli.commands}, "the README shows each command"


def test_the_two_commands_come_first() -> None:
    top = README.read_text().splitlines()[:25]
    assert any("bin/zdiloco demo" in line for line in top)
    assert any("bin/test" in line for line in top)


# ---- settings


def unknown_keys(text: str) -> list[str]:
    """Code spans that look like a key of run.toml and are none."""
    known = {key.path for key in describe()}
    sections = {key.section for key in describe()}
    faults = []
    for span in spans_of(text):
        found = re.fullmatch(r"([a-z]+)\.([a-z_]+)(?: = .*)?", span)
        if not found or found[1] not in sections or span == "run.toml":
            continue
        of_learner = found[1] == "learner" and hasattr(zdiloco.Learner, found[2])
        if f"{found[1]}.{found[2]}" not in known and not of_learner:
            faults.append(span)
    return faults


@pytest.mark.parametrize("name", names_of(CURRENT))
def test_every_key_exists(name: str) -> None:
    assert unknown_keys((ROOT / name).read_text()) == []


def test_keys_are_found_and_judged() -> None:
    assert unknown_keys("`sync.perod` `net.insecure = true` `run.toml` `learner.step` `foo.bar`") == ["sync.perod"]


@pytest.mark.parametrize("name", names_of(CURRENT))
def test_settings_shown_can_be_used(name: str) -> None:
    for block in re.findall(r"^```toml\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE):
        from_tree(tomllib.loads(block), source=name)


@pytest.mark.parametrize("name", names_of(sorted(ROOT.glob("config/*.toml"))))
def test_settings_shipped_can_be_used(name: str) -> None:
    load(ROOT / name)


def test_defaults_that_are_told_are_those_of_the_code() -> None:
    """`section.key` (VALUE): the value in brackets is the default."""
    defaults = {key.path: key.default for key in describe()}
    told = re.findall(r"`([a-z]+\.[a-z_]+)` \(([0-9.]+)\)", "".join(path.read_text() for path in CURRENT))
    assert len(told) > 4
    assert [(key, value) for key, value in told if float(value) != defaults[key]] == []


# ---- paths, links, tests


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def broken_links(path: pathlib.Path, text: str) -> list[str]:
    """Links to files and headings of the checkout that do not exist."""
    faults = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        place = (path.parent / file) if file else path
        if not place.exists() or (anchor and anchor not in _anchors(place)):
            faults.append(target)
    return faults


def _anchors(path: pathlib.Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("name", names_of(ALL))
def test_links_lead_somewhere(name: str) -> None:
    assert broken_links(ROOT / name, (ROOT / name).read_text()) == []


def test_broken_links_are_found() -> None:
    text = "[a](LICENSE) [b](docs/none.md) [c](https://x.org) [d](README.md#nowhere) [e](README.md#papers)"
    assert broken_links(README, text) == ["docs/none.md", "README.md#nowhere"]


def missing_paths(text: str) -> list[str]:
    """Code spans that name a file, folder or test of the checkout that does not exist."""
    faults = []
    for span in spans_of(text):
        found = re.fullmatch(r"((?:zdiloco|tests|bin|docs|config)/[\w./-]*?)(?:::(\w+))?", span)
        if not found:
            continue
        path = ROOT / found[1]
        if not path.exists() or (found[2] and found[2] not in _functions(path)):
            faults.append(span)
    return faults


def _functions(path: pathlib.Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", names_of(ALL))
def test_paths_and_tests_that_are_named_exist(name: str) -> None:
    assert missing_paths((ROOT / name).read_text()) == []


def test_missing_paths_are_found() -> None:
    good = "`zdiloco/core/` `tests/test_docs.py::test_missing_paths_are_found` `bin/zdiloco demo`"
    assert missing_paths(good + " `docs/none.md` `tests/test_docs.py::test_none`") == [
        "docs/none.md",
        "tests/test_docs.py::test_none",
    ]


# ---- the tree


def tree_of(text: str) -> list[str]:
    """Return the paths that the tree of the README names, folders with a / at their end."""
    block = text.partition("<!-- tree -->\n")[2].partition("<!-- /tree -->")[0]
    folders: list[tuple[int, str]] = [(0, "")]
    paths = []
    for line in block.splitlines():
        depth = len(line) - len(line.lstrip())
        while depth <= folders[-1][0] and len(folders) > 1:
            folders.pop()
        names = itertools.takewhile(_is_a_name, line.split())
        made = [folders[-1][1] + name for name in names]
        assert made, f"no path in {line!r}"
        paths += made
        if made[0].endswith("/"):
            folders.append((depth, made[0]))
    return paths


def _is_a_name(word: str) -> bool:
    return bool(re.fullmatch(r"[\w.-]+(?:/[\w.-]*)*", word)) and ("." in word or "/" in word or word.isupper())


def test_the_tree_is_the_real_one() -> None:
    """Every path exists; every entry of the checkout, folder of the package and file on its top level is there."""
    named = tree_of(README.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert len(named) == len(set(named)) > 40
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split() if line[0] != "#"]
    entries = [path.name for path in ROOT.iterdir() if path.name != ".git"]
    wanted = [entry for entry in entries if not any(fnmatch.fnmatch(entry, pattern) for pattern in ignored)]
    package = [path for path in (ROOT / "zdiloco").rglob("*.py") if "__pycache__" not in path.parts]
    wanted += [f"{path.parent.relative_to(ROOT)}/" for path in package]
    wanted += [str(path.relative_to(ROOT)) for path in [*(ROOT / "zdiloco").glob("*.py"), *ROOT.glob("docs/*.md")]]
    missing = {path for path in wanted if not any(name == path or name.startswith(path.strip("/")) for name in named)}
    assert missing == set()


def test_a_tree_is_read() -> None:
    text = "<!-- tree -->\n    a/  words\n      b.py  c.py  of d.py\n    e/f.py  text\n    LICENSE\n<!-- /tree -->"
    assert tree_of(text) == ["a/", "a/b.py", "a/c.py", "e/f.py", "LICENSE"]


# ---- errors, changes, manners


def test_exit_codes_are_those_of_the_code() -> None:
    """docs/operating.md has one row for each code; each names exactly the errors that end a process with it."""
    rows = re.findall(r"^\| (\d+) \|[^|]*\|([^|]*)\|$", (ROOT / "docs" / "operating.md").read_text(), re.MULTILINE)
    told = {int(code): set(re.findall(r"`(\w+)`", names)) for code, names in rows}
    real: dict[int, set[str]] = {0: set(), INTERRUPTED: set()}
    for name, each in inspect.getmembers(errors, inspect.isclass):
        if issubclass(each, errors.ZdilocoError):
            real.setdefault(each.exit_code, set()).add(name)
    assert told == real


def test_the_changelog_says_what_is_not_released_yet() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_the_papers_are_cited_and_the_project_stands_alone() -> None:
    text = README.read_text()
    for number in ("2604.21428", "2501.18512", "2311.08105"):
        assert f"https://arxiv.org/abs/{number}" in text
    assert "not affiliated" in text


# ---- the example


@pytest.fixture
def served(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, free_ports: Callable[[int], int]
) -> Iterator[SyncerNode]:
    """A syncer on loopback, whose run.toml lies in tmp_path. The parameter is its quorum, 1 without one."""
    quorum = getattr(request, "param", 1)
    (tmp_path / "run.toml").write_text(
        f'[run]\ndir = "{tmp_path / "run"}"\ntarget_tokens = 2000\n[sync]\nmin_quorum = {quorum}\n'
        f"sync_period = 4\ncheckpoint_every_s = 0.5\n"
        f"beat_every_s = 0.1\nsuspect_after_s = 1.0\n[net]\nport = {free_ports(4)}\n"
    )
    node = SyncerNode(load(tmp_path / "run.toml"))
    thread = node.start()
    yield node
    node.stop("the test is over")
    thread.join(20.0)
    assert not thread.is_alive()


@pytest.mark.net
@pytest.mark.proc
@pytest.mark.parametrize("served", [2], indirect=True)  # else one may be at the target before the other has joined
def test_the_script_of_the_examples_runs(served: SyncerNode, tmp_path: pathlib.Path) -> None:
    """Both files as they lie there, save ports and folder; two learners, started as the README says."""
    for name in ("a", "b"):
        assert f"    OMP_WAIT_POLICY=PASSIVE .venv/bin/python docs/examples/train.py {name}\n" in README.read_text()
    script = (EXAMPLES / "train.py").read_text()
    (tmp_path / "train.py").write_text(script)  # beside the run.toml of `served`
    assert sum(bool(line.strip()) and line[0] != "#" for line in script.splitlines()) < 25
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, str(tmp_path / "train.py")]
    started = [
        subprocess.Popen([*command, name], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        for name in ("a", "b")
    ]
    try:
        ended = [process.communicate(timeout=SCRIPT_LIMIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0, 0], ended
    for name, (said, _) in zip(("a", "b"), ended, strict=True):
        assert said.startswith(f"{name}: reached_target=True (the target is reached); off by ")


def test_the_settings_of_the_examples_can_be_used() -> None:
    config = load(EXAMPLES / "run.toml")
    assert (config.run.dir, config.run.target_tokens) == ("runs/example", 400_000)


@pytest.mark.net
def test_the_example_of_the_readme_runs(
    served: SyncerNode, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands there, in a script that has a model, an optimizer, data and a function that trains."""
    (example,) = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert len(example.partition("\n\n")[2].splitlines()) == 5
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(8, 8)
    before = model.weight.detach().clone()
    ends = time.monotonic() + EXAMPLE_LIMIT_S

    def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        ((model(batch) - batch.flip(1)) ** 2).mean().backward()
        optimizer.step()

    scope: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
        "data": itertools.takewhile(lambda _: time.monotonic() < ends, (torch.randn(4, 8) for _ in itertools.count())),
        "train_step": train_step,
    }
    exec(compile(example, str(README), "exec"), scope)
    assert scope["learner"].reached_target, scope["learner"].reason or "the time is over"
    assert not torch.equal(before, model.weight)
    assert served.machine.merged_tokens >= 2000
