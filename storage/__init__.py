"""Datasets and models as manifests with files, which rows of a dataset a rank has, and the stores of both."""

from kfp_distributed.storage.errors import ChecksumMismatch, KeyNotFound, StorageError
from kfp_distributed.storage.files import FileEntry, describe_folder, sha256_of
from kfp_distributed.storage.kubeflow.credentials import Credentials, credentials_from_environment
from kfp_distributed.storage.model import (
    MODEL_MANIFEST,
    ModelIncomplete,
    ModelManifest,
    verify_model,
    verify_model_folder,
)
from kfp_distributed.storage.object_stores.embedded import EmbeddedStore, embedded_object_store
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Entry, ObjectRange, Store
from kfp_distributed.storage.uri import Location, join_uri, parse_uri

__all__ = [
    "MODEL_MANIFEST",
    "ChecksumMismatch",
    "Credentials",
    "EmbeddedStore",
    "Entry",
    "FileEntry",
    "KeyNotFound",
    "Location",
    "ModelIncomplete",
    "ModelManifest",
    "ObjectRange",
    "StorageError",
    "Store",
    "credentials_from_environment",
    "describe_folder",
    "embedded_object_store",
    "join_uri",
    "open_store",
    "parse_uri",
    "sha256_of",
    "verify_model",
    "verify_model_folder",
]
