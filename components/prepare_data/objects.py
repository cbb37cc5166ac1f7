"""Objects of an S3 store, fetched by Arrow, and what Arrow's errors mean.

Arrow does it, for the room `storage`, whose stores can also write, would double this step's code.
"""

import re
from pathlib import Path

from pyarrow import fs

from kfp_distributed.storage.credentials import Credentials, credentials_from_environment
from kfp_distributed.storage.files import relative_path
from kfp_distributed.storage.uri import Location

# Together they let a store that is down be known after 4 s where it refuses connections (pauses of 1, 2 and 4 s at most
# come between the tries) and after 19 s at most where it is silent (3 s a try).
_ATTEMPTS, _CONNECT_SECONDS = 4, 2
_KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or their Secret (KFP_DISTRIBUTED_OBJECT_STORE_SECRET)"
_RUNS = "check that it runs, and AWS_ENDPOINT_URL or the Secret (KFP_DISTRIBUTED_OBJECT_STORE_SECRET)"
# By what is found in Arrow's text; the first that fits.
_ADVICE = {
    "NO_SUCH_BUCKET": "there is no such bucket: correct its name, or AWS_ENDPOINT_URL",
    "INVALID_ACCESS_KEY|SIGNATURE": f"the store refuses the keys: check {_KEYS}",
    "SKEWED": "the store refuses this machine's time: set its clock",
    "located in '|HTTP status 30|HeaderMalformed": "it is in another region: set AWS_REGION to {region}",
    "ACCESS_DENIED": f"the account may not read it: check {_KEYS}, and what the account may do",
    "resolve host": f"there is no server of that name: {_RUNS}",
    "TLS|SSL|certificate": "no connection by TLS: begin AWS_ENDPOINT_URL with http:// if the server speaks none, or "
    "set AWS_CA_BUNDLE to a PEM file with its certificate authority",
    "NETWORK_CONNECTION|timeout|timed out": f"the server does not answer: {_RUNS}",
    "XML": "that is no object store: check AWS_ENDPOINT_URL",
    "SLOW_DOWN|HTTP status 5": "the store is starting or overloaded: run the step again",
}


def download_objects(source: str, location: Location, path: Path) -> None:
    """Fetch the object of a location, or all below it, as a file or folder; nothing where there is none.

    Args:
        source: The address, which credentials are looked up for.
        location: The same, taken apart.
        path: The local file or folder.

    Raises:
        OSError: The store cannot be read; names the store and what to do.
        ValueError: There are no credentials, or a key is no safe path.
    """
    who = credentials_from_environment(uri=source)
    origin = f"{location.bucket}/{location.key}".rstrip("/")
    try:
        store = _open(who, location.bucket)
        kind = _kind_of(store, origin)
        if kind == fs.FileType.Directory:
            for entry in store.get_file_info(fs.FileSelector(origin, recursive=True)):
                relative_path(entry.path)
            path.mkdir(exist_ok=True)
        if kind != fs.FileType.NotFound:
            fs.copy_files(origin, str(path), source_filesystem=store, destination_filesystem=fs.LocalFileSystem())
    except OSError as error:
        where = f"http{'s' * who.secure}://{who.endpoint}"
        raise OSError(f"{where}, bucket {location.bucket!r}: {explain(str(error))}") from None


def _open(who: Credentials, bucket: str) -> fs.S3FileSystem:
    is_aws = who.endpoint.endswith(".amazonaws.com")
    return fs.S3FileSystem(
        access_key=who.access_key,
        secret_key=who.secret_key,
        session_token=who.session_token or None,
        region=who.region or (fs.resolve_s3_region(bucket) if is_aws else "us-east-1"),
        scheme=f"http{'s' * who.secure}",
        endpoint_override=None if is_aws else who.endpoint,
        connect_timeout=_CONNECT_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(_ATTEMPTS),
        # Older versions of Arrow do not know this argument.
        **({"tls_ca_file_path": who.ca_bundle} if who.ca_bundle else {}),
    )


def _kind_of(store: fs.S3FileSystem, origin: str) -> fs.FileType:
    """Returns what a bucket and key lead to: a file, a folder or nothing.

    The answer to the HEAD request that asks for it says neither why the store refuses it nor whether the bucket is
    missing. The answer to a list request does.
    """
    refusal = ""
    try:
        kind = store.get_file_info(origin).type
    except OSError as error:
        kind, refusal = fs.FileType.NotFound, str(error)
        if "NETWORK_CONNECTION" in refusal:
            raise
    if kind == fs.FileType.NotFound:
        try:
            store.get_file_info(fs.FileSelector(origin))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise OSError(f"{error} {refusal}") from None
        if refusal:
            raise OSError(refusal)
    return kind


def explain(text: str) -> str:
    """Say what an error of Arrow's S3 client means and what to do; the text itself where that is not known."""
    region = re.search("located in '([^']+)'", text)
    for pattern, advice in _ADVICE.items():
        if re.search(pattern, text):
            return advice.format(region=region[1] if region else "the bucket's")
    return " ".join(text.split())
