"""Checks of a job for a language model that runs on this machine, where the step sees what its replicas see."""

from pathlib import Path

from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.trainers.programs.base_model import check_files, is_in_store, parse_hub
from kfp_distributed.trainers.programs.program import OF_TEXTS, parameters_name
from kfp_distributed.trainers.programs.weight_files import check_weight_file


def check_language_model(job: TrainingJob, available_gpus: int) -> None:
    """Check the GPUs of a fine-tuning and the folder of its model. Other jobs pass.

    Args:
        job: The job.
        available_gpus: Number of GPUs of this machine.

    Raises:
        ValueError: There are too few, or the folder has no complete model.
    """
    program, parameters = job.description.program.get("trainer"), job.description.parameters
    if program not in OF_TEXTS:
        return
    address = parameters["base_model"]
    try:
        if parameters.get("method") == "qlora":
            _check_gpus(job, available_gpus)
        if not (is_in_store(address) or parse_hub(address)):
            _check_folder(address)
    except ValueError as error:
        raise ValueError(f"{parameters_name(program)}: {error}") from None


def _check_gpus(job: TrainingJob, available: int) -> None:
    """Check that a training with 4 bits has GPUs. All others run on CPUs, too."""
    requested = sum(replica.resources.gpus for replica in job.topology.replicas)
    if requested > available:
        raise ValueError(
            f'method is "qlora", which needs GPUs with CUDA: {requested} requested, {available} found (devices '
            '/dev/nvidia*, or CUDA_VISIBLE_DEVICES). Set method to "lora", or run the step on a cluster with GPUs. '
            "GPUs without such devices, as those of WSL 2, must be named: set CUDA_VISIBLE_DEVICES=0 for one"
        )


def _check_folder(address: str) -> None:
    folder = Path(address)
    if not folder.is_dir():
        raise ValueError(f"base_model is {address!r}, and this machine has no such folder")
    names = [path.name for path in folder.iterdir() if path.is_file()]
    check_files(address, names)
    for name in names:
        check_weight_file(address, folder / name, names)
