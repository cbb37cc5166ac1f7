"""Compiles every component and pipeline to YAML: `python -m kfp_distributed.pipelines.specs FOLDER`."""

import argparse
from functools import partial
from pathlib import Path

from kfp import compiler

from kfp_distributed.components import steps
from kfp_distributed.pipelines.train_and_export import make_train_and_export


def write_specs(folder: Path, *, image: str = "", package: str = "", task_config: bool = False) -> list[Path]:
    """Compiles every component and pipeline into a folder, which is made if missing.

    By itself `train` runs anywhere. In the pipeline, whose size Argo limits, it runs on a cluster.

    Args:
        folder: Where the YAML files go.
        image: As of `steps`.
        package: As of `steps`.
        task_config: As of `steps`.

    Returns:
        The files written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    make = partial(steps, image=image, package=package, task_config=task_config)
    pipelines = {"train_and_export": make_train_and_export(make())}
    for name, deliverable in {**make(local=True)._asdict(), **pipelines}.items():
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
    made = write_specs(options.folder, image=options.image, package=options.package, task_config=options.task_config)
    for file in made:
        print(f"{file}  {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
