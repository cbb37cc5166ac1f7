"""The step `export_model` as Kubeflow Pipelines sees it."""

from typing import NamedTuple

from kfp import dsl


def export_model(
    model_name: str,
    manifest: dsl.Output[dsl.Artifact],
    model: dsl.Input[dsl.Model] = None,
    model_uri: str = "",
    mlflow_run_id: str = "",
    bucket: str = "",
    version: int = 0,
    metrics: dsl.Input[dsl.Metrics] = None,
    aliases: list[str] = [],
    keep: int = 0,
) -> NamedTuple("Exported", [("uri", str), ("version", int)]):  # type: ignore[valid-type]
    """Exports a model as a numbered version, which model servers load if it is of a format that they know.

    The model goes to BUCKET/MODEL_NAME/VERSION/ with a manifest, export.json: each file's SHA-256, the metrics, the
    run. A version becomes visible completely or not at all, and an existing one is never overwritten. If KFP takes the
    outputs of an identical task from its cache, nothing is exported. If KFP starts the step again after it has
    exported, the step returns that version.

    Args:
        model: Model of `train`, of any format, or a folder of dsl.importer or of another step with one of the files
            saved_model.pb, model.onnx, model.keras, model.pt2, model.pt or *.safetensors. TensorFlow Serving and
            KServe load SavedModels, Triton loads ONNX models and TorchScript. Kubeflow Pipelines downloads it into the
            step. Pass either `model` or `model_uri`. Default: none.
        model_uri: Address of the model: the output `model_uri` of `train`, or an exported version, also by its alias.
            The step does not download it if it is on the server of `bucket`: the server copies it. Examples:
            "s3://mlpipeline/v2/artifacts/.../model", "s3://staging/digits/3", "s3://staging/digits@candidate".
            Default: empty, which means `model`.
        mlflow_run_id: ID of the MLflow run that gets a link to the version, the output `mlflow_run_id` of `train`.
            Example: "3f1c0c1be0a14f6c9d3c7a0e6c1d2b4a". Default: empty, which means the run in the metadata of `model`.
        model_name: Name of the exported model, of letters, digits, dots, hyphens and underscores. It is the folder that
            model servers load. Example: "digits".
        bucket: Bucket to export to, with an optional prefix, as a name, an s3:// address or a path. The bucket must
            exist. Examples: "models", "s3://models/team-a". Default: empty, which means the folder "models" beside the
            artifacts of Kubeflow Pipelines, such as minio://mlpipeline/models.
        version: Number of the version, at least 1. An existing version is never overwritten. Default: 0, which means
            the number after the highest one in use.
        metrics: Metrics to store in the manifest, usually those of `evaluate`. Default: none.
        aliases: Names that move to the version after it is complete. BUCKET/MODEL_NAME@ALIAS is then the address of
            the version. Each has lower-case letters, digits and hyphens. Example: ["production"]. Default: [].
        keep: Number of the newest complete versions to keep after the export. Older ones are deleted, except those
            with an alias. Example: 5. Default: 0, which means all.

    Returns:
        manifest: JSON file export.json with name, version and time, the metrics, the run, and the SHA-256 of each file.
        uri: Address of the exported version, such as s3://models/digits/3.
        version: Number of the exported version.

    Raises:
        SystemExit: The model cannot be exported. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    parameters = dict(locals())
    from kfp_distributed.components.export_model.step import run_step

    return run_step(**parameters)
