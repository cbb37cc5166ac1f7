"""The files of a public project agree with the repository: links, versions, the workflow of CI."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from release import IMAGES

from kfp_distributed.library import VERSION

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text("utf-8"))
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_each_file_that_names_the_version_has_the_same():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == VERSION
    assert f"| {VERSION.rpartition('.')[0]} | yes |" in (ROOT / "SECURITY.md").read_text("utf-8")
    assert f"## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_every_work_that_the_benchmarks_compare_is_cited():
    page = (ROOT / "docs" / "explanation" / "benchmarks.md").read_text("utf-8")
    references = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["references"]
    missing = [
        entry["title"]
        for entry in references
        if not (entry.get("url", "none") in page or f"https://doi.org/{entry.get('doi')}" in page)
    ]
    assert missing == []


def test_ci_calls_targets_that_exist_on_the_versions_that_are_supported():
    commands = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    called = {target for command in commands for target in re.findall(r"^make ([\w-]+)", command)}
    targets = {*re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)}
    assert called == {"docs", "environments", "images", "release", "test"}
    assert called <= targets
    lowest, end = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', (ROOT / "pyproject.toml").read_text()).groups()
    matrix = WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert matrix == [f"3.{minor}" for minor in range(int(lowest), int(end))]


def test_ci_and_a_release_have_every_image():
    images = {path.parent.name for path in (ROOT / "images").glob("*/Containerfile")}
    assert {*WORKFLOW["jobs"]["images"]["strategy"]["matrix"]["image"]} == {*IMAGES} == images


@pytest.mark.parametrize("form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[bf]*.yml")), ids=lambda p: p.name)
def test_a_form_for_issues_has_what_the_host_requires(form):
    content = yaml.safe_load(form.read_text("utf-8"))
    assert {"name", "description", "body"} <= content.keys()
    assert {item["type"] for item in content["body"]} <= {"input", "textarea"}
    assert len({item["id"] for item in content["body"]}) == len(content["body"])
    assert all(item["attributes"]["label"] for item in content["body"])


def test_every_package_is_in_the_wheel():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    packages = re.search(r"^packages = \[(.*?)^\]", project, re.DOTALL | re.MULTILINE)[1]
    folders = {
        path.parent.relative_to(ROOT).as_posix()
        for room in ROOT.glob("*/__init__.py")
        for path in room.parent.rglob("__init__.py")
    }
    assert {*re.findall(r'"kfp_distributed\.([\w.]+)"', packages)} == {folder.replace("/", ".") for folder in folders}


def test_examples_and_pages_import_only_public_names():
    """People copy them, so an import that moves breaks their programs."""
    reference = (ROOT / "docs" / "reference" / "python-api.md").read_text("utf-8")
    texts = [*(ROOT / "examples").rglob("*.py"), *(ROOT / "examples").rglob("*.ipynb"), *(ROOT / "docs").rglob("*.md")]
    imports = {
        (module, name.strip())
        for text in (*texts, ROOT / "README.md")
        for module, names in re.findall(r"from (kfp_distributed[\w.]*) import ([\w, ]+)", text.read_text("utf-8"))
        for name in names.split(",")
    }
    private = {
        (module, name)
        for module, name in imports
        if f"::: {module}.{name}\n" not in reference
        and not {f"`{module}`", f"`{name}`"} <= {*re.findall("`.+?`", reference)}
    }
    assert private == set()


def test_sources_name_only_pages_that_exist():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    sources = [ROOT / name for name in listed if name.endswith((".py", ".yaml", "Makefile", "Containerfile"))]
    missing = {
        (source.relative_to(ROOT).as_posix(), page)
        for source in sources
        if source.exists()
        for page in re.findall(r"\bdocs/[\w/-]+\.md", source.read_text("utf-8"))
        if not (ROOT / page).exists()
    }
    assert missing == set()
