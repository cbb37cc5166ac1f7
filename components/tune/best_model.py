"""Copies the model of the best trial to where the step puts its model, and deletes those of others."""

from kfp_distributed.components.tune.search_plan import TRIALS
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest, verify_model
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.parallel import run_in_parallel
from kfp_distributed.storage.uri import uri_beside


def keep_best_model(model_uri: str, trial: int, keeps_others: bool) -> ModelManifest:
    """Copy the model of a trial, unless an earlier attempt has. An object store copies it by itself.

    Args:
        model_uri: Folder of the step's model, beside which the folder TRIALS is.
        trial: Number of the best trial.
        keeps_others: Whether the models of trials are kept.

    Returns:
        The manifest of the model.

    Raises:
        ModelIncomplete: The trial has no complete model.
        StorageError: A request fails.
    """
    target, trials = open_store(model_uri), open_store(uri_beside(model_uri, TRIALS))
    source = open_store(uri_beside(model_uri, TRIALS, str(trial)))
    if source.exists(MODEL_MANIFEST):  # Otherwise an earlier attempt has copied it, and began to delete.
        manifest, text = verify_model(source), source.read(MODEL_MANIFEST)
        if not target.exists(MODEL_MANIFEST) or target.read(MODEL_MANIFEST) != text:
            files = {file.path for file in manifest.files}
            target.delete([MODEL_MANIFEST])
            target.delete({entry.key for entry in target.list()} - files)
            run_in_parallel(lambda path: target.copy(source, path, path), files)
            target.write(MODEL_MANIFEST, text)
    model = verify_model(target)
    if not keeps_others:
        keys = [entry.key for entry in trials.list()]
        manifests = [key for key in keys if key.endswith(f"/{MODEL_MANIFEST}")]
        trials.delete(manifests)
        trials.delete({*keys} - {*manifests})
    return model
