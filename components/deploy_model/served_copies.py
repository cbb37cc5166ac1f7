"""The folders that model servers load: copies of one version each, which the object store makes by itself.

KServe fetches all objects whose keys begin with an address. TensorFlow Serving then serves the highest number that it
finds in /mnt/models, and Triton the highest one in /mnt/models/NAME. The runtime of language models loads /mnt/models
itself. So each deployment has a folder with one version alone. Its servers do not need the version itself, which
retention may delete.
"""

import re

from kfp_distributed.components.deploy_model.exported_version import ExportedVersion
from kfp_distributed.components.model_versions.versions import CONFIGURATION, LANGUAGE_MODEL, SERVED_FORMATS
from kfp_distributed.storage.parallel import run_in_parallel
from kfp_distributed.storage.store import Store

_SERVED = ".served"
"""Folder of the copies. No name of a model begins with a dot."""


def copy_uri(version: ExportedVersion, name: str, deployment: str) -> str:
    """Return the address of the copy of a deployment. The slash at its end keeps the copies of others out. Pure.

    Args:
        version: The version.
        name: Name of the InferenceService.
        deployment: ID of the deployment.
    """
    return f"{_root(version)}/{_SERVED}/{name}-{deployment}/"


class ServedCopies:
    """The copies of one InferenceService beside the models of a folder for exports."""

    def __init__(self, store: Store, version: ExportedVersion, name: str) -> None:
        """Create without a request.

        Args:
            store: The store of the folder for exports.
            version: The version to copy.
            name: Name of the InferenceService.
        """
        self._store, self._version, self._name = store, version, name

    def copy(self, uri: str) -> int:
        """Let the object store copy the version, and return the number of objects that were not there yet.

        An object appears at once, and a version never changes. So an object of the right size is complete.

        Args:
            uri: Address of the copy.

        Raises:
            StorageError: The store refuses a request or does not answer, or the version was deleted.
        """
        version, target = self._version, self.folder(uri)
        source = version.folder or f"{version.model_name}/{version.number}/"
        sizes = {entry.key: entry.size for entry in self._store.list(target)}
        missing = [file.path for file in version.files if sizes.get(target + file.path) != file.size]
        # The file that identifies the format comes last: `is_complete` looks for it.
        last = {CONFIGURATION} if version.model_format == LANGUAGE_MODEL else {*SERVED_FORMATS}
        for paths in ([path for path in missing if path not in last], [path for path in missing if path in last]):
            run_in_parallel(lambda path: self._store.copy(self._store, source + path, target + path), paths)
        return len(missing)

    def folder(self, uri: str) -> str:
        """Return the prefix in the store of the files of the version in a copy."""
        number = f"{self._version.number}/"
        folders = {"tensorflow": number, "onnx": f"{self._name}/{number}", LANGUAGE_MODEL: ""}
        return self._key(uri) + folders[self._version.model_format]

    def is_complete(self, uri: str) -> bool:
        """Return whether an address is a complete copy for this InferenceService.

        Raises:
            StorageError: The store refuses a request or does not answer.
        """
        return self.is_own(uri) and any(self._identifies(uri, entry.key) for entry in self._store.list(self._key(uri)))

    def delete(self, uri: str) -> int:
        """Delete a copy, and return the number of its objects.

        Raises:
            ValueError: The address is not that of a copy for this InferenceService.
            StorageError: The store refuses a request or does not answer.
        """
        if not self.is_own(uri):
            raise ValueError(f"{uri!r} is not a copy for the InferenceService {self._name}")
        keys = [entry.key for entry in self._store.list(self._key(uri))]
        self._store.delete([key for key in keys if self._identifies(uri, key)])
        self._store.delete([key for key in keys if not self._identifies(uri, key)])
        return len(keys)

    def is_own(self, uri: str) -> bool:
        """Return whether an address is that of a copy for an InferenceService of this name."""
        pattern = re.escape(copy_uri(self._version, self._name, "")[:-1]) + "[0-9a-f]{16}-[0-9a-f]{16}/"
        return re.fullmatch(pattern, uri) is not None

    def _identifies(self, uri: str, key: str) -> bool:
        # Of a language model, others may be in folders without a number, such as onnx.
        names = "|".join(map(re.escape, SERVED_FORMATS))
        pattern = rf"{re.escape(CONFIGURATION)}|(.+/)?[0-9]+/({names})"
        return re.fullmatch(pattern, key.removeprefix(self._key(uri))) is not None

    def _key(self, uri: str) -> str:
        return uri.removeprefix(f"{_root(self._version)}/")


def _root(version: ExportedVersion) -> str:
    return version.uri.removesuffix(f"/{version.model_name}/{version.number}")
