"""The step `import_model` as Kubeflow Pipelines sees it."""


def import_model(source: str, target: str) -> str:
    """Copies a language model into an object store, for replicas without access to the internet.

    Pass the output as `base_model` in `train_parameters` of the trainer `language_model`. A model that was imported
    before is left as it is. An import that has failed or was killed is completed when the step runs again: model.json
    is written last. This step itself must run each time: a component of Python is never cached, and a task of its YAML
    needs `set_caching_options(False)`.

    Args:
        source: Address of the model: hf://OWNER/NAME@REVISION of the Hugging Face Hub, with the token of HF_TOKEN if
            the model is private or gated, or an address of an object store, or a folder of the step. Only safetensors,
            JSON and the files of the tokenizer are copied: no pickles, no code and no folders. Examples:
            "hf://Qwen/Qwen2.5-7B-Instruct@a09a35458c702b33eeacc393d103063234e8bc28", "s3://staging/llama".
        target: Address of the folder of the stored model, which must be empty or have this model. Example:
            "s3://models/Qwen2.5-7B-Instruct".

    Returns:
        Output: The address of the stored model, which is `target`.

    Raises:
        SystemExit: The source cannot be read or has no complete language model, or the target has another model or
            cannot be written. The message is the last line of the step's log, because KFP shows an error nowhere else.
    """
    parameters = dict(locals())
    from kfp_distributed.components.import_model.step import run_step

    return run_step(**parameters)
