"""The files of a public project agree with the repository: links, versions, the workflow of CI."""

import re
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
