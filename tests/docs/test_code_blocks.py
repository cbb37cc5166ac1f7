"""The code blocks of the README and the documentation: each language is checked as CONTRIBUTING.md says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from code_blocks import PAGES, ROOT, TEXT, CodeBlock, as_program, commands, included_files, read_blocks
from forked_replicas import forked

from kfp_distributed.cli.main import main
from kfp_distributed.components.train.describe.distributions import KEYS, parse_distribution
from kfp_distributed.trainers import parse_program

MAKE_TARGETS = {
    target
    for names in re.findall(r"^([\w -]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in names.split()
}


def blocks_of(page: str, *languages: str) -> list[CodeBlock]:
    return [block for block in read_blocks((ROOT / page).read_text("utf-8")) if block.language in languages]


def pages_with(*languages: str) -> list[str]:
    return [page for page in PAGES if blocks_of(page, *languages)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Working directory of a block, in which the paths of a checkout exist."""
    for name in ("component_specs", "deploy", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_each_block_has_a_language_with_rules(page):
    allowed = {"json", "python", "sh", "yaml", *TEXT}
    blocks = read_blocks((ROOT / page).read_text("utf-8"))
    assert [(block.line, block.language) for block in blocks if block.language not in allowed] == []


@pytest.mark.parametrize("page", PAGES)
def test_included_files_are_covered_by_tests_of_their_own(page):
    files = included_files((ROOT / page).read_text("utf-8"))
    assert [file for file in files if not file.startswith(("examples/", "deploy/", "CHANGELOG.md"))] == []


@pytest.mark.parametrize("page", pages_with("json"))
def test_json_is_valid_for_the_parameter_that_it_shows(page):
    for block in blocks_of(page, "json"):
        value = json.loads(block.code)
        if block.skipped or not isinstance(value, dict):
            continue
        if {"trainer", "function", "command"} & value.keys():
            parse_program(value)
        elif not value or KEYS.keys() & value.keys():
            assert parse_distribution(value).distribution_type == value.get("distribution_type", "Job")


@pytest.mark.parametrize("page", PAGES)
def test_a_dict_in_a_sentence_is_valid(page):
    texts = re.findall(r'`(\{"\w+": [^`]+\})`', (ROOT / page).read_text("utf-8"))
    for value in (json.loads(text) for text in texts if "…" not in text):
        if KEYS.keys() & value.keys():
            parse_distribution(value)


@pytest.mark.parametrize("page", pages_with("yaml"))
def test_yaml_is_valid(page):
    for block in blocks_of(page, "yaml"):
        assert list(yaml.safe_load_all(block.code))


@pytest.mark.takes(6)
@pytest.mark.parametrize("page", pages_with("python"))
def test_python_runs(page, folder):
    """The blocks of a page are one program. One that is skipped is only compiled."""
    blocks = blocks_of(page, "python")
    for block in blocks:
        compile(block.code, f"{page}:{block.line}", "exec")
    program = folder / f"page_{Path(page).stem.replace('-', '_')}.py"
    program.write_text(as_program([block for block in blocks if not block.skipped]))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "examples")}
    done = subprocess.run(forked(sys.executable, program), env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, f"{page}:\n{done.stderr}"


@pytest.mark.parametrize("page", pages_with("sh"))
def test_commands_exist_with_these_options(page, folder, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(folder / "none"))
    for block in blocks_of(page, "sh"):
        syntax = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True)
        assert syntax.returncode == 0, f"{page}:{block.line}: {syntax.stderr}"
        for words in commands(block.code):
            if Path(words[0]).name == "kfp-distributed" and not block.mark.startswith("skip"):
                parse_command(words[1:])
            elif words[0] == "make":
                targets = {word for word in words[1:] if "=" not in word and not word.startswith("-")}
                assert targets <= MAKE_TARGETS, f"{page}:{block.line}"


def parse_command(words: list[str]) -> None:
    """Parse a command line of kfp-distributed, without running it. click raises what it would print."""
    if words in (["--help"], ["--version"]):
        return
    context = main.make_context("kfp-distributed", list(words))
    name, command, arguments = main.resolve_command(context, list(words))
    if isinstance(command, click.Group):
        context = command.make_context(name, list(arguments), parent=context)
        name, command, arguments = command.resolve_command(context, arguments)
    if arguments != ["--help"]:
        command.make_context(name, arguments, parent=context)


PAGE = """\
```python
first = 1
```

1. In a list:

    <!-- test: skip, needs a GPU -->
    ```sh title="A title"
    nvidia-smi
    ```

```python
--8<-- "examples/mirrored_classifier.py"
```

```python
second = first
```
"""


def test_blocks_are_read_with_line_language_and_mark():
    first, listed, second = read_blocks(PAGE)
    assert first == CodeBlock(2, "python", "first = 1\n", "")
    assert listed == CodeBlock(9, "sh", "nvidia-smi\n", "skip, needs a GPU")
    assert included_files(PAGE) == ["examples/mirrored_classifier.py"]
    program = as_program([first, second]).splitlines()
    assert {number: line for number, line in enumerate(program, 1) if line} == {2: "first = 1", 17: "second = first"}


def test_a_mark_without_a_reason_is_refused():
    with pytest.raises(ValueError, match="line 3: the mark 'skip' is neither 'cluster' nor 'skip, REASON'"):
        list(read_blocks("<!-- test: skip -->\n```sh\ntrue\n```\n"))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("make docs  # a comment\n", [["make", "docs"]]),
        ("A=1 B=2 kfp-distributed \\\n  doctor > file", [["kfp-distributed", "doctor"], ["file"]]),
        ("a --x '{\"b\": 1}' | b && c", [["a", "--x", '{"b": 1}'], ["b"], ["c"]]),
        (
            "docker push $(make image-name IMAGE=steps)",
            [["docker", "push", "$"], ["make", "image-name", "IMAGE=steps"]],
        ),
    ],
)
def test_commands_of_a_script(script, words):
    assert list(commands(script)) == words


@pytest.mark.parametrize("words", [["install", "--nmaespace", "a"], ["instal"], ["compile"]])
def test_a_wrong_command_is_refused(words):
    with pytest.raises(Exception, match=r"No such (option|command)|Missing parameter"):
        parse_command(words)
