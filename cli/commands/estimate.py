"""`kfp-distributed estimate`."""

from typing import Any

import click

from kfp_distributed.cli.options import JsonOrFile, WrongArgument
from kfp_distributed.cli.text_table import format_table
from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.describe.topology import plan_topology
from kfp_distributed.components.train.describe.value_kinds import bytes_of
from kfp_distributed.components.train.run.training_request.gpu_memory import read_config, read_size
from kfp_distributed.components.train.run.training_request.request import check_distribution, most_ranks
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters, check_sharding, micro_batches
from kfp_distributed.trainers.programs.memory_plan import PARTS, gibibytes, memory_choices
from kfp_distributed.trainers.programs.model_size import check_length
from kfp_distributed.trainers.programs.program import LANGUAGE_MODEL, check_parameters, parse_program

_JSON = JsonOrFile()


@click.command()
@click.option(
    "--base-model",
    help="Folder with config.json, or the address of a model in a store. Default: base_model of --train-parameters.",
)
@click.option("--train-parameters", type=_JSON, default="{}", help="train_parameters of the task.")
@click.option(
    "--distribution-specification", type=_JSON, default="{}", help="Its distribution_specification. Default: one pod."
)
def command(
    base_model: str | None,
    train_parameters: Any,  # noqa: ANN401
    distribution_specification: Any,  # noqa: ANN401
) -> None:
    """Estimate the memory in GiB that the fine-tuning of a language model needs on each GPU.

    It reads config.json, and no weights. It prints a line for each method, with and without sharding and
    activation_checkpointing, and for 1, 2, 4 and 8 rows at once (micro_batch_size) that divide the rows of a rank. All
    other parameters are those of --train-parameters. With worker_gpu_memory, the last column says what fits.
    """
    try:
        specification = parse_distribution(distribution_specification)
        program = parse_program({"trainer": LANGUAGE_MODEL})
        check_distribution(program, specification)
        ranks = most_ranks(plan_topology(specification), specification)
        if base_model and isinstance(train_parameters, dict):
            train_parameters = {**train_parameters, "base_model": base_model}
        checked = check_parameters(program, train_parameters)
        check_sharding(checked, ranks)
        parameters = LanguageModelParameters(**checked)
        micro_batches(parameters.batch_size, 0, ranks)
        size = read_size(parameters.base_model)
        adapter = size.adapter(parameters.lora_r, parameters.lora_target_modules)
        warning = check_length(read_config(parameters.base_model), checked)
    except (OSError, StorageError, ValueError) as error:
        raise WrongArgument(str(error)) from None
    if warning:
        click.echo(f"Warning: {warning}", err=True)
    click.echo(
        f"{size.parameters:,} parameters, or {adapter:,} of an adapter (lora_r {parameters.lora_r}); max_length "
        f"{parameters.max_length}, batch_size {parameters.batch_size}, ranks {ranks}"
    )
    memory = specification.worker_gpu_memory
    head = [
        "method",
        "sharding",
        "activation_checkpointing",
        "micro_batch_size",
        "gib",
        *PARTS,
        *(["fits"] if memory else []),
    ]
    rows = []
    for choice, estimate in memory_choices(size, parameters, ranks):
        numbers = map(gibibytes, (estimate.total, *estimate))
        fits = ["yes" if estimate.total <= bytes_of(memory) else "no"] if memory else []
        saves = str(choice.activation_checkpointing).lower()
        rows.append([choice.method, choice.sharding, saves, str(choice.micro_batch_size), *numbers, *fits])
    click.echo("\n".join(format_table(head, rows)))
