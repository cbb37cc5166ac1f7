"""The step `fingerprint_source` as Kubeflow Pipelines sees it."""


def fingerprint_source(source: str) -> str:
    """Returns a short text that changes when the files of a source change.

    Pass it to `prepare_data` as `source_fingerprint`. The cache of Kubeflow Pipelines then reuses datasets only if the
    source is unchanged. This step itself must run each time: a component of Python is never cached, and a task of its
    YAML needs `set_caching_options(False)`.

    Args:
        source: Source of `prepare_data`: "digits", or the path or address of a file or folder. Examples:
            "s3://data/flowers.csv", "https://example.com/flowers.parquet".

    Returns:
        Output: Hash of the names, sizes, ETags and modification times of all files, with the number of files and of
            bytes, such as "sha256:9f8a... files=3 bytes=48211". For "digits": "digits".

    Raises:
        SystemExit: The source does not exist or cannot be read. The message is the last line of the step's log, because
            KFP shows an error nowhere else.
    """
    parameters = dict(locals())
    from kfp_distributed.components.fingerprint_source.step import run_step

    return run_step(**parameters)
