"""Runs the step `evaluate_language_model` on the artifacts of KFP."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from kfp_distributed.components.acceptance.new_rows import check_new_rows
from kfp_distributed.components.acceptance.threshold import Threshold, Verdict
from kfp_distributed.components.evaluate_language_model.scored_model import read_model
from kfp_distributed.components.evaluate_language_model.scores_page import scores_page
from kfp_distributed.components.kfp_interface.artifacts import Artifact, MetricsArtifact
from kfp_distributed.components.model_versions.aliases import resolve
from kfp_distributed.components.train.run.runners.runner_choice import kind_of_runner
from kfp_distributed.components.train.step import log_metrics, run_job
from kfp_distributed.components.train.tell.experiment_tracker import ExperimentTracker
from kfp_distributed.components.train.tell.log_format import log
from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.reports.page import render_page
from kfp_distributed.storage.dataset import DatasetManifest
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.kubeflow.placeholders import refuse_placeholders
from kfp_distributed.storage.model import ModelIncomplete
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.shards import fetch_manifest
from kfp_distributed.trainers.programs.base_model import hub_hint, is_in_store, parse_hub
from kfp_distributed.trainers.programs.evaluation_parameters import LanguageEvaluationParameters
from kfp_distributed.trainers.programs.program import LANGUAGE_EVALUATION
from kfp_distributed.trainers.runtime.job_description import STORE_SECONDS
from kfp_distributed.trainers.runtime.outputs.language_scores import ANSWERS, SCORES, parse_scores

_PROMPTS = ("messages", "conversations", "prompt", "instruction", "chosen")
"""Columns of rows that have a prompt."""

_OF_MODEL = ("base_model", "sha256", "adapter", "adapter_sha256")
"""Parameters of the job that the model decides."""


def run_step(
    *,
    dataset: Artifact,
    model_uri: str,
    evaluation: Artifact,
    metrics: MetricsArtifact,
    report: Artifact,
    metric: str,
    bound: float | None,
    allow_training_rows: bool,
    evaluation_parameters: Mapping[str, Any],
    image: str,
    **job: Any,  # noqa: ANN401  (checked by run_job)
) -> Verdict:
    """Evaluate a language model and return score and is_good_enough; the parameters are those of the component.

    Raises:
        SystemExit: The model cannot be evaluated. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    try:
        refuse_placeholders({"model_uri": model_uri, "metric": metric, "image": image})
        if not model_uri:
            raise ValueError(
                "model_uri is empty: set the address of a model, such as s3://bucket/model, or the path of a folder"
            )
        threshold = Threshold.of_texts(metric, bound, evaluation_parameters.get("harness_tasks") or ())
        _check_parameters(evaluation_parameters, threshold)
        uses_pods = job["cluster_configuration_secret"] or kind_of_runner(job["runner"]) == "kubernetes"
        _check_harness(evaluation_parameters, bool(uses_pods))
        if "://" not in evaluation.uri and uses_pods:
            raise ValueError(
                f"the output {evaluation.uri} is on the disk of this machine, which pods cannot write: run the "
                "pipeline with an object store, or set runner to local"
            )
        manifest = _dataset(dataset)
        if threshold.metric == "exact_match" and {column.name for column in manifest.columns}.isdisjoint(_PROMPTS):
            raise ValueError('metric is "exact_match", and the rows of the dataset are texts without prompts')
        is_path = not is_in_store(model_uri) and not parse_hub(model_uri, "model_uri")
        if is_path and not uses_pods and not Path(model_uri).is_dir():
            raise ValueError(f"model_uri is {model_uri!r}, and there is no such folder{hub_hint(model_uri)}")
        model = read_model(resolve(model_uri) if is_in_store(model_uri) else model_uri)
        warning = check_new_rows(manifest, model.training_data, allow_training_rows)
    except (ValueError, OSError, StorageError, ModelIncomplete) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None
    if warning:
        log("WARNING", warning)
    run_job(
        train_dataset=dataset,
        model=evaluation,
        report=report,
        tracker=ExperimentTracker(),
        train_specification={"trainer": LANGUAGE_EVALUATION, **({"image": image} if image else {})},
        trainers=[LANGUAGE_EVALUATION],
        train_parameters={**evaluation_parameters, **model.parameters},
        **job,
    )
    try:
        folder = open_store(
            evaluation.path if Path(evaluation.path, SCORES).exists() else evaluation.uri, retry_seconds=STORE_SECONDS
        )
        scores, answers, lower = parse_scores(folder.read(SCORES), folder.read(ANSWERS))
        if threshold.metric in lower:
            threshold = replace(threshold, direction="at most")
        log_metrics(metrics, scores)
        evaluation.metadata.update(model_uri=without_secrets(model_uri))
        judgement = ""
        try:
            verdict = threshold.judge(scores)
            judgement = threshold.describe(verdict)
        except ValueError as error:
            judgement = str(error)
            raise
        finally:
            page = scores_page(model_uri, manifest, scores, answers, judgement, warning)
            Path(report.path).write_text(render_page("evaluate_language_model.html", page), encoding="utf-8")
    except (ValueError, OSError, StorageError) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None
    print(judgement, flush=True)
    return verdict


def _check_parameters(parameters: Mapping[str, Any], threshold: Threshold) -> None:
    """Check the names of parameters. `plan_job` checks the values.

    Raises:
        ValueError: One is unknown or missing, or there are no answers to judge by.
    """
    allowed = [field.name for field in fields(LanguageEvaluationParameters) if field.name not in _OF_MODEL]
    for name in parameters:
        if name not in allowed:
            raise ValueError(f"evaluation_parameters has no {name!r}; allowed are {', '.join(allowed)}")
    if bool(parameters.get("harness_tasks")) != bool(parameters.get("harness_folder")):
        raise ValueError("evaluation_parameters has one of harness_tasks and harness_folder: set both, or none")
    if threshold.metric == "exact_match" and parameters.get("answers") in (0, "0"):
        raise ValueError('metric is "exact_match", and answers is 0: set answers to the number of prompts to answer')


def _check_harness(parameters: Mapping[str, Any], uses_pods: bool) -> None:
    """Check that harness_folder exists and names the tasks, as far as the step can see. Pods need a full path.

    Raises:
        ValueError: It does not, or is a relative path.
        StorageError: The store cannot be read.
    """
    address, tasks = parameters.get("harness_folder"), parameters.get("harness_tasks")
    if not isinstance(address, str) or not isinstance(tasks, list) or not address:  # `plan_job` checks the types.
        return
    problem, is_store = "", is_in_store(address)
    is_seen = not uses_pods or (is_store and not address.startswith("file://"))  # Pods may have another volume.
    if not is_store and not Path(address).is_absolute():
        problem = "which is no full path"
    elif is_seen and not is_store and not Path(address).is_dir():
        problem = "and there is no such folder"
    elif is_seen:
        store = open_store(address)
        keys, missing = [entry.key for entry in store.list()], [*map(str, tasks)]
        for key in keys:
            # Files of other names are included, such as _template_yaml.
            if missing and "yaml" in key.rpartition("/")[2]:
                text = store.read(key).decode(errors="replace")
                missing = [task for task in missing if task not in text]
        if missing:
            problem = f"and no YAML file in it has {', '.join(missing)}" if keys else "and it has no files"
    if problem:
        raise ValueError(
            f"evaluation_parameters: harness_folder is {address!r}, {problem}; allowed are an address such as "
            "s3://bucket/tasks, and the full path of a folder of each replica, with the definitions of harness_tasks"
        )


def _dataset(dataset: Artifact) -> DatasetManifest:
    manifest = fetch_manifest(dataset.path if Path(dataset.path).is_dir() else dataset.uri)
    if not manifest.rows:
        raise ValueError(f"split {manifest.split!r} of the dataset has no rows: raise its fraction in prepare_data")
    return manifest
