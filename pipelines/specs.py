"""Compiles every component and pipeline to YAML: `python -m kfp_distributed.pipelines.specs FOLDER`."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfp import compiler

from kfp_distributed.components import Steps, steps
from kfp_distributed.pipelines.train_and_export import make_train_and_export


def deliverables(with_steps: Steps) -> Mapping[str, Any]:
    """Returns every component and pipeline by the name of its YAML file, without the ending."""
    return {**with_steps._asdict(), "train_and_export": make_train_and_export(with_steps)}


def write_specs(folder: Path, with_steps: Steps) -> list[Path]:
    """Compiles every component and pipeline into a folder, which is made if missing.

    Returns:
        The files written, in the order of `deliverables`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, deliverable in deliverables(with_steps).items():
        files.append(folder / f"{name}.yaml")
        compiler.Compiler().compile(deliverable, str(files[-1]))
    return files


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m kfp_distributed.pipelines.specs", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the YAML files go")
    parser.add_argument("--image", default="", help="an image of yours with kfp-distributed, instead of embedded code")
    parser.add_argument("--package", default="", help="what pip installs at start, instead of embedded code")
    parser.add_argument(
        "--task-config", action="store_true", help="what is set on `train` is for its pods; takes KFP 2.15"
    )
    options = parser.parse_args()
    made = steps(image=options.image, package=options.package, task_config=options.task_config)
    for file in write_specs(options.folder, made):
        print(f"{file}  {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
