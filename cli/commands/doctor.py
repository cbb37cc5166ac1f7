"""`kfp-distributed doctor`."""

import json
import os
from pathlib import Path
from typing import Any

import click

from kfp_distributed.cli.cluster_checks.checks import Question, Refusal, as_line
from kfp_distributed.cli.cluster_checks.step_buckets import StepBucket, read_step_buckets
from kfp_distributed.cli.options import (
    JsonOrFile,
    WrongArgument,
    check_account,
    check_bucket,
    check_image,
    connected,
    doctor_command,
    endpoint_from_here,
    namespace_option,
    variable_of_endpoint,
)
from kfp_distributed.cli.setup.libraries import StepLibrary, read_pipeline, read_step_libraries
from kfp_distributed.cli.survey import survey
from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.trainers.programs.requirements import image_of


@click.command()
@namespace_option("Namespace of the pipelines' pods.")
@click.option(
    "--pipeline",
    default="",
    metavar="FILE",
    help="Compiled pipeline whose steps must find their library and their buckets.",
)
@click.option(
    "--distribution",
    type=JsonOrFile(),
    help="distribution_specification that must work. Default: all types of jobs.",
)
@click.option(
    "--image",
    default="",
    callback=check_image,
    help="Image of the replicas. Default: the image of a training that names none.",
)
@click.option(
    "--service-account",
    default="",
    callback=check_account,
    help="ServiceAccount whose permissions to check, such as pipeline-runner. Default: your own.",
)
@click.option(
    "--bucket",
    default="",
    callback=check_bucket,
    help="s3://BUCKET/KEY to check. Default: where the pipelines store their artifacts.",
)
@click.pass_context
def command(
    context: click.Context,
    namespace: str,
    pipeline: str,
    distribution: Any,  # noqa: ANN401
    image: str,
    service_account: str,
    bucket: str,
) -> None:
    """Check that a cluster is ready for training, and print a fix for each problem.

    The cluster is that of KUBECONFIG, or in a pod the pod's own. Nothing is created. The exit code is 1 if a check has
    failed, which means that no training can run.
    """
    libraries, buckets = _pipeline_needs(pipeline) if pipeline else ([], [])
    try:
        specification = None if distribution is None else parse_distribution(distribution)
        endpoint = endpoint_from_here(os.environ)
    except ValueError as error:
        raise WrongArgument(str(error)) from None
    api = connected(namespace)
    chosen = specification.distribution_type if specification else None
    volumes = specification.volumes if specification else ()
    question = Question(
        api.namespace,
        image or _default_image(chosen or "Job"),
        chosen,
        specification.operator if specification else "auto",
        service_account,
        bucket,
        volumes=bool(volumes),
        claims=any("size" in dict(volume) for volume in volumes),
        endpoint=endpoint,
        endpoint_variable=variable_of_endpoint(os.environ) if endpoint else "",
        libraries=tuple(libraries),
        buckets=tuple(buckets),
        specification=specification,
        command=doctor_command(
            api.namespace,
            pipeline=pipeline,
            distribution=json.dumps(distribution) if specification else "",
            image=image,
            service_account=service_account,
            bucket=bucket,
        ),
    )
    levels = set()
    try:
        for check in survey(api, question):
            click.echo(as_line(check))
            levels.add(check.level)
    except ClusterError as error:
        raise click.ClickException(str(error)) from None
    context.exit(int("failed" in levels))


def _pipeline_needs(file: str) -> tuple[list[StepLibrary], list[StepBucket]]:
    try:
        spec = read_pipeline(Path(file).read_text(encoding="utf-8"))
        return read_step_libraries(spec), read_step_buckets(spec)
    except OSError as error:
        raise WrongArgument(f"--pipeline {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise WrongArgument(f"--pipeline {file} is not YAML: it is not UTF-8 text") from None
    except ValueError as error:
        raise WrongArgument(f"--pipeline {file} {error}") from None


def _default_image(distribution_type: str) -> str | Refusal:
    try:
        return image_of({}, distribution_type, os.environ)
    except ValueError as error:
        return Refusal(error)
