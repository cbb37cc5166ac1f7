"""The facts about an exported version that model registries store."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from kfp_distributed.components.model_versions.versions import SERVED_FORMATS


@dataclass(frozen=True)
class VersionRecord:
    """An exported version.

    Attributes:
        model_name: Name of the model.
        version: Number of the version.
        uri: Address of the version.
        model_format: KServe's name of the format: "tensorflow" or "onnx".
        run: ID of the pipeline run that exported it.
        metrics: Metrics of its manifest, by name.
        aliases: Aliases that `export_model` moved to it.
    """

    model_name: str
    version: int
    uri: str
    model_format: str
    run: str
    metrics: Mapping[str, float]
    aliases: Sequence[str]

    @property
    def is_remote(self) -> bool:
        """Whether other machines can read the address. They cannot read a local folder."""
        return urlsplit(self.uri).scheme not in ("", "file")


def read_record(manifest: str, uri: str, aliases: Sequence[str]) -> VersionRecord:
    """Return the record of an exported version.

    Args:
        manifest: Text of its export.json.
        uri: Address of the version.
        aliases: Aliases that moved to it.
    """
    content = json.loads(manifest)
    paths = {entry["path"] for entry in content["files"]}
    return VersionRecord(
        model_name=content["model_name"],
        version=content["version"],
        uri=uri,
        model_format=next((name for path, name in SERVED_FORMATS.items() if path in paths), ""),
        run=content["source_run"],
        metrics=content["metrics"],
        aliases=aliases,
    )
