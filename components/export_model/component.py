"""The step `export_model` as Kubeflow Pipelines sees it."""

from typing import NamedTuple

from kfp import dsl


def export_model(
    model: dsl.Input[dsl.Model],
    model_name: str,
    bucket: str,
    manifest: dsl.Output[dsl.Artifact],
    version: int = 0,
    metrics: dsl.Input[dsl.Metrics] = None,
) -> NamedTuple("Exported", [("uri", str), ("version", int)]):  # type: ignore[valid-type]
    """Exports a model as a numbered version that TensorFlow Serving and KServe load.

    The model goes to BUCKET/MODEL_NAME/VERSION/ with a manifest, export.json: each file's SHA-256, the metrics, the
    run. A version becomes visible whole or not at all, and an existing one is never overwritten.

    Args:
        model: The model to export.
        model_name: Name of the model: the folder in the bucket that model servers are pointed at.
        bucket: Bucket to export to, made if absent: "models", or with a prefix "s3://models/team-a".
        manifest: What export.json says.
        version: Number of the version; 0 is the next free one.
        metrics: Metrics of the model, such as evaluate's, for the manifest.

    Returns:
        uri: Where the version lies.
        version: Its number.

    Raises:
        SystemExit: With the cause as its text, which so ends the step's log; KFP shows it nowhere else.
    """
    parameters = dict(locals())
    from kfp_distributed.components.export_model.step import run_step

    return run_step(**parameters)
