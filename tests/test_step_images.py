"""images/steps and images/evaluate have the packages of the steps, and their tags change with the library."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from test_deploy import run_make

from kfp_distributed.components.kfp_interface.step_packages import DASK, PACKAGES
from kfp_distributed.library.content import STEP_PACKAGES, content_hash, read_library

pytestmark = pytest.mark.takes(6)

ROOT = Path(__file__).parent.parent
STEPS = {
    "steps": (
        "prepare_data",
        "train",
        "export_model",
        "fingerprint_source",
        "deploy_model",
        "import_model",
        "evaluate_language_model",
        "tune",
    ),
    "evaluate": ("evaluate", "predict"),
}


def pinned(image: str, *, first_block: bool = False) -> dict[str, str]:
    """Return the version of each package of an image, by its name in lower case."""
    text = (ROOT / "images" / image / "requirements.txt").read_text()
    lines = (text.partition("\n\n")[0] if first_block else text).splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {
        requirement.name.lower(): next(iter(requirement.specifier)).version
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate()
    }


def needed(image: str) -> dict[str, Requirement]:
    # The workers of prepare_data and predict are pods of these images.
    requirements = [Requirement(text) for step in STEPS[image] for text in (*PACKAGES[step], *DASK)]
    return {
        requirement.name.lower(): requirement
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate()
    }


@pytest.mark.parametrize("image", STEPS)
def test_image_has_the_packages_of_its_steps(image):
    versions = {**(pinned("tensorflow") if image == "evaluate" else {}), **pinned(image)}
    wrong = [
        f"{name}=={versions.get(name)}"
        for name, requirement in needed(image).items()
        if not (name in versions and requirement.specifier.contains(versions[name]))
    ]
    assert wrong == []


@pytest.mark.parametrize("image", STEPS)
def test_image_has_no_other_packages_except_kfp_and_dependencies(image):
    assert {*pinned(image, first_block=True)} - {*needed(image)} == {"kfp"}


def test_both_images_have_the_same_allowed_version_of_kfp():
    """tests/components/test_kfp_versions.py tests the oldest and the newest allowed version."""
    assert pinned("steps")["kfp"] == pinned("evaluate")["kfp"]
    project = (ROOT / "pyproject.toml").read_text()
    allowed = Requirement(re.search(r'"(kfp>=.*)"', project)[1])
    assert allowed.specifier.contains(pinned("steps")["kfp"])


@pytest.mark.parametrize("image", STEPS)
def test_image_has_the_packages_of_the_library_for_steps(image):
    copies = re.findall(
        r"^COPY (\w+) .*kfp_distributed/\1$", (ROOT / "images" / image / "Containerfile").read_text(), re.M
    )
    assert sorted(copies) == sorted(STEP_PACKAGES)
    context = (ROOT / ".dockerignore").read_text().splitlines()
    assert {f"!{package}" for package in STEP_PACKAGES} <= {*context}


def test_hash_of_a_checkout_equals_that_of_the_installed_library():
    script = [sys.executable, "-S", str(ROOT / "images" / "library_hash.py")]
    printed = subprocess.run(script, check=True, capture_output=True, text=True).stdout
    assert printed == f"{content_hash(read_library())}\n"


def test_changed_library_changes_the_names_of_the_step_images(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in ("images", "cli", *STEP_PACKAGES):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))

    def names() -> dict[str, str]:
        return {image: run_make("image-name", f"IMAGE={image}", folder=tmp_path) for image in (*STEPS, "tensorflow")}

    def changed(file: str) -> set[str]:
        before = names()
        with (tmp_path / file).open("a") as text:
            text.write("\n")
        after = names()
        return {image for image in before if before[image] != after[image]}

    assert changed("storage/uri.py") == {"steps", "evaluate"}
    assert changed("cli/main.py") == set()
    assert changed("images/steps/requirements.txt") == {"steps"}
    assert changed("images/tensorflow/requirements.txt") == {"evaluate", "tensorflow"}
