"""MkDocs hooks: insert the generated parts of the reference, and lay out the sources for mkdocstrings."""

import shutil
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from reference import generated_parts, insert_parts

ROOT = Path(__file__).parents[1]


@event_priority(100)  # Before mkdocstrings, which ignores a folder that does not exist at its own event.
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Create build/api, in which the folders of the repository are the packages of `kfp_distributed`."""
    link_packages(ROOT / "build" / "api" / "kfp_distributed")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that the benchmarks write, and change their links to pages of docs/ to links of the site."""
    for page in sorted((ROOT / "benchmarks").glob("*.md")):
        text = page.read_text(encoding="utf-8").replace("](../docs/", "](../").replace("](README.md", "](train-step.md")
        files.append(File.generated(config, f"benchmarks/{page.name.replace('README', 'train-step')}", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:  # noqa: ANN401
    """Insert the generated parts."""
    return insert_parts(markdown, generated_parts())


def link_packages(folder: Path) -> None:
    """Fill a folder with a link to each package of the library, from which mkdocstrings reads the sources.

    Args:
        folder: Folder to create. What it contained is removed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for package in ROOT.glob("*/__init__.py"):
        (folder / package.parent.name).symlink_to(package.parent)
