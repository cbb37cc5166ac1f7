"""Copies the model of the best trial to where the step puts its model, and deletes those of others."""

from collections.abc import Iterable

from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest, verify_model
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.parallel import run_in_parallel


def keep_best_model(model_uri: str, best_uri: str, unwanted: Iterable[str]) -> ModelManifest:
    """Copy the model of a trial, unless an earlier attempt has. An object store copies it by itself.

    Args:
        model_uri: Folder of the step's model.
        best_uri: Folder of the model of the best trial.
        unwanted: Folders of models that are deleted, when the model has been copied.

    Returns:
        The manifest of the model.

    Raises:
        ModelIncomplete: The trial has no complete model.
        StorageError: A request fails.
    """
    source, target = open_store(best_uri), open_store(model_uri)
    if source.exists(MODEL_MANIFEST):  # Otherwise an earlier attempt has copied it, and began to delete.
        manifest, text = verify_model(source), source.read(MODEL_MANIFEST)
        if not target.exists(MODEL_MANIFEST) or target.read(MODEL_MANIFEST) != text:
            files = {file.path for file in manifest.files}
            target.delete([MODEL_MANIFEST])
            target.delete({entry.key for entry in target.list()} - files)
            run_in_parallel(lambda path: target.copy(source, path, path), files)
            target.write(MODEL_MANIFEST, text)
    model = verify_model(target)
    for uri in unwanted:
        store = open_store(uri)
        keys = {entry.key for entry in store.list()}
        store.delete(keys & {MODEL_MANIFEST})  # First: without it, nobody takes what is left for a model.
        store.delete(keys - {MODEL_MANIFEST})
    return model
