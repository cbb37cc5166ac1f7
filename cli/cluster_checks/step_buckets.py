"""The buckets that the steps of a compiled pipeline use if nobody sets its inputs. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kfp_distributed.cli.cluster_checks.checks import Check, Refusal
from kfp_distributed.cli.setup.libraries import has_library
from kfp_distributed.components.model_versions.addresses import export_root, models_folder
from kfp_distributed.storage.kubeflow.kfp_store import StoreReference
from kfp_distributed.storage.uri import parse_uri


class StepBucket(NamedTuple):
    """A bucket that a parameter of a step names.

    Attributes:
        step: Name of the step.
        parameter: Name of the parameter.
        uri: Address in the bucket; "" if the step exports to the folder `models` beside the artifacts.
    """

    step: str
    parameter: str
    uri: str


def read_step_buckets(spec: Mapping[str, Any]) -> list[StepBucket]:
    """Return the buckets that the defaults and the constants of a pipeline name, each with the first step that uses it.

    Args:
        spec: A compiled pipeline or component, as `read_pipeline` returns it.
    """
    buckets: dict[str, StepBucket] = {}
    for step, is_own, parameters in _steps(spec, spec.get("root", {}), {}):
        for name, value in _with_entries(parameters) if is_own else parameters.items():
            # A value with a placeholder is known in the run.
            if not isinstance(value, str) or "{{$" in value:
                continue
            # What another library means by a bucket is not known.
            exports = is_own and name == "bucket"
            uri = export_root(value) if exports and value else value
            if exports or bucket_of(uri):
                buckets.setdefault(bucket_of(uri) or uri, StepBucket(step, name, uri))
    return list(buckets.values())


def judge_models(step: str, root: str, store: StoreReference | Refusal) -> Check:
    """Return where a step exports that names no bucket.

    Args:
        step: Name of the step.
        root: The pipeline root.
        store: Its object store.
    """
    if isinstance(store, Refusal):
        text = f"where {step} exports is not known, because the pipeline root is not: {store}"
        return Check("models", "warning", text, f"set the input bucket of {step}, or fix the problem above")
    try:
        return Check("models", "ok", f"{step} exports to {models_folder(root)}, because it names no bucket")
    except ValueError as error:
        return Check(
            "models",
            "failed",
            f"{step} names no bucket, and models cannot be beside the artifacts: {error}",
            f"set the input bucket of {step}",
        )


def judge_address(step: str, uri: str) -> Check:
    """Return the check of a step whose input `bucket` names no bucket."""
    text = f"{uri} is in no bucket of an S3 store; a path is on the disk of the pod, and lost with it"
    return Check(f"bucket of {step}", "warning", text, f"set the input bucket of {step}, such as s3://BUCKET/PREFIX")


def bucket_of(uri: str) -> str:
    """Return the bucket of an address; "" for a local folder and for what is no address."""
    try:
        return parse_uri(uri).bucket if uri else ""
    except ValueError:
        return ""


def _steps(
    spec: Mapping[str, Any], component: Mapping[str, Any], values: Mapping[str, object]
) -> Iterator[tuple[str, bool, dict[str, object]]]:
    """Yield the name of each step, whether it is of this library, and the parameters that are known before a run."""
    scope = {**_defaults(component), **values}
    for name, task in component.get("dag", {}).get("tasks", {}).items():
        inner = spec.get("components", {}).get(task["componentRef"]["name"], {})
        sources = task.get("inputs", {}).get("parameters", {})
        arguments = {key: _value(source, scope) for key, source in sources.items()}
        if "dag" in inner:
            yield from _steps(spec, inner, arguments)
        else:
            yield name, has_library(spec, inner.get("executorLabel", "")), {**_defaults(inner), **arguments}


_DICTS = ("split",)
"""Parameters of the steps of this library that are dicts with addresses."""

_INSERTED = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")
"""A value that KFP inserts into a dict."""


def _with_entries(parameters: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the name and the value of each parameter, and of each entry of a dict that may have addresses."""
    for name, value in parameters.items():
        if name in _DICTS and isinstance(value, Mapping):
            for key, entry in value.items():
                inserted = _INSERTED.fullmatch(entry) if isinstance(entry, str) else None
                yield key, parameters.get(inserted[1]) if inserted else entry
        else:
            yield name, value


def _defaults(component: Mapping[str, Any]) -> dict[str, object]:
    parameters = component.get("inputDefinitions", {}).get("parameters", {})
    return {name: value["defaultValue"] for name, value in parameters.items() if "defaultValue" in value}


def _value(source: Mapping[str, Any], scope: Mapping[str, object]) -> object:
    """Return the value of a parameter; None if it is an output of a step or an input without a default."""
    return scope.get(source.get("componentInputParameter", ""), source.get("runtimeValue", {}).get("constant"))
