"""README.md: it is short, its links lead to files, and its pipeline is the one that a test runs."""

import re
from pathlib import Path

import pytest
from code_blocks import read_blocks

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ["README.md", "docs/index.md"]


def paragraphs(markdown):
    """Return the blocks of prose of a page: no code, tables, headings or lists."""
    blocks = re.sub(r"^ *```.*?^ *``` *$", "", markdown, flags=re.DOTALL | re.MULTILINE).split("\n\n")
    return [block.strip().splitlines() for block in blocks if re.match(r"\s*[\w*`\[]", block)]


def test_it_is_short():
    assert len(README.splitlines()) <= 150
    assert [lines for lines in paragraphs(README) if len(lines) > 4] == []
    assert paragraphs("Some\nprose\n\n# A heading\n\n```sh\nmake\n```\n\n| a |\n|---|\n") == [["Some", "prose"]]


def test_its_pipeline_is_the_one_that_a_test_runs():
    (program,) = (block.code for block in read_blocks(README) if block.language == "python")
    example = (ROOT / "examples" / "train_digits.py").read_text(encoding="utf-8")
    assert program.splitlines() == example.split('"""\n\n', 1)[1].splitlines()


@pytest.mark.parametrize("page", PAGES)
def test_its_links_lead_to_files(page):
    folder, text = (ROOT / page).parent, (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert len(links) > 20
    assert [link for link in links if not (folder / link).exists()] == []


def test_each_doctor_checks_the_service_account_of_the_steps():
    """Else it checks the reader, who is often an administrator of the cluster."""
    pages = [ROOT / "README.md", *(ROOT / "docs" / "tutorials").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md")]
    commands = [
        (page.name, command)
        for page in pages
        # A laptop creates the job itself, with the account of its reader.
        if page.name != "from-a-laptop.md"
        for command in re.findall(r"kfp-distributed (doctor --(?:.|\\\n)*)", page.read_text(encoding="utf-8"))
    ]
    assert len(commands) > 4
    assert [(page, command) for page, command in commands if "--service-account " not in command] == []
