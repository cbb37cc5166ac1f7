"""The step's one flow: fetch, look, plan, write, show."""

import re
import shutil
import tempfile
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from kfp_distributed.components.prepare_data.overview import render_overview, sample_images
from kfp_distributed.components.prepare_data.plan import Options, plan_split
from kfp_distributed.components.prepare_data.sources import open_source
from kfp_distributed.components.prepare_data.split import scan, write_splits
from kfp_distributed.storage.credentials import credentials_from_environment
from kfp_distributed.storage.dataset import DatasetManifest
from kfp_distributed.storage.files import relative_path
from kfp_distributed.storage.uri import Location, parse_uri

# Seconds of silence after which a server is given up; a slow download may take longer.
_TIMEOUT = 60
# With the pauses between them, a request is repeated for about half a minute.
_ATTEMPTS = 8


def prepare(source: str, options: Options, datasets: Mapping[str, Any], overview: str) -> dict[str, DatasetManifest]:
    """Write the train, validation and test datasets and the overview of a source.

    Everything is written beside its place and moved there when all of it is whole.

    Args:
        source: "digits", or the path or address of the data.
        options: How to read and split it.
        datasets: KFP artifacts "train", "validation" and "test", whose path and metadata are used.
        overview: Where the HTML page goes.

    Returns:
        The manifest of each split.

    Raises:
        ValueError: The source or an option is not right; nothing has been written then.
        OSError: The source cannot be fetched, or a dataset not written.
    """
    with tempfile.TemporaryDirectory(prefix="prepare-data-") as scratch:
        path = None if source == "digits" else local_copy(source, Path(scratch))
        data = open_source(path, options, Path(scratch))
        columns, label, class_counts, remarks = scan(data)
        for remark in remarks:
            print(remark, flush=True)
        plan = plan_split(class_counts, options)
        places = {split: Path(dataset.path) for split, dataset in datasets.items()}
        beside = places["train"].parent
        beside.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".prepare-data-", dir=beside) as unfinished:
            folders = {split: Path(unfinished, split) for split in places}
            for folder in folders.values():
                folder.mkdir()
            manifests, moments = write_splits(data, columns, label, plan, options, shown(source), folders)
            page = Path(unfinished, "overview")
            images = sample_images(folders["train"], manifests["train"])
            page.write_text(render_overview(manifests, moments, images, remarks))
            for split, place in places.items():
                shutil.rmtree(place, ignore_errors=True)
                folders[split].replace(place)
            page.replace(overview)
    for split, manifest in manifests.items():
        datasets[split].metadata.update(rows=manifest.rows, classes=len(manifest.label.classes))
        shards = len(manifest.shards)
        print(f"{split}: {manifest.rows:,} rows in {shards} shard{'s' * (shards != 1)}", flush=True)
    return manifests


def shown(source: str) -> str:
    """Return a source as it may be printed: without a URL's user and query, which can hold secrets."""
    return re.sub(r"(?<=//)[^/]*@|[?#].*", "", source) if "://" in source else source


def local_copy(source: str, scratch: Path) -> Path:
    """Return the path of a source's file or folder, fetched into an empty folder where it is remote.

    Args:
        source: A path, file://, http(s)://, s3:// or minio:// address.
        scratch: Empty folder for what must be fetched.

    Raises:
        ValueError: There is no such file or object, or the address is none.
        OSError: It cannot be downloaded.
    """
    try:
        if re.match("(?i)https?://", source):
            if name := Path(urlsplit(source).path).name:
                return _download(source, scratch / name)
            raise ValueError(f"source {shown(source)} names no file")
        location = parse_uri(source)
        path = Path(location.key)
        if location.scheme == "s3":
            path = scratch / path.name
            print(f"downloading {shown(source)}", flush=True)
            _download_objects(source, location, path)
    except (OSError, HTTPException) as error:
        # An HTTPException can repeat the whole address, signature and all.
        reason = error if isinstance(error, OSError) else type(error).__name__
        raise OSError(f"source {shown(source)} cannot be downloaded: {reason}") from None
    if not path.exists():
        raise ValueError(f"source: there is no {shown(source)}")
    return path


def _download(source: str, path: Path) -> Path:
    with urllib.request.urlopen(source, timeout=_TIMEOUT) as answer, path.open("wb") as file:
        size = answer.headers["Content-Length"]
        print(f"downloading {shown(source)}, {size} bytes", flush=True)
        shutil.copyfileobj(answer, file)
        if size and file.tell() != int(size):
            raise OSError(f"the connection broke after {file.tell()} of {size} bytes")
    return path


def _download_objects(source: str, location: Location, path: Path) -> None:
    """Fetch the object of a location, or all below it, as a file or folder; nothing where there is none.

    Arrow does it, for the room `storage`, whose stores can also write, would double this step's code.
    """
    who = credentials_from_environment(uri=source)
    is_aws = who.endpoint.endswith(".amazonaws.com")
    store = fs.S3FileSystem(
        access_key=who.access_key,
        secret_key=who.secret_key,
        session_token=who.session_token or None,
        region=who.region or (fs.resolve_s3_region(location.bucket) if is_aws else "us-east-1"),
        scheme=f"http{'s' * who.secure}",
        endpoint_override=None if is_aws else who.endpoint,
        connect_timeout=10,
        retry_strategy=fs.AwsStandardS3RetryStrategy(_ATTEMPTS),
        # Older versions of Arrow do not know this argument.
        **({"tls_ca_file_path": who.ca_bundle} if who.ca_bundle else {}),
    )
    origin = f"{location.bucket}/{location.key}".rstrip("/")
    kind = store.get_file_info(origin).type
    if kind == fs.FileType.Directory:
        for found in store.get_file_info(fs.FileSelector(origin, recursive=True)):
            relative_path(found.path)
        path.mkdir(exist_ok=True)
    if kind != fs.FileType.NotFound:
        fs.copy_files(origin, str(path), source_filesystem=store, destination_filesystem=fs.LocalFileSystem())
