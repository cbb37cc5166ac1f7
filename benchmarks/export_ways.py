"""Upload a file or a folder, or copy objects inside a store: one process of `export.py`.

`python export_ways.py WAY SOURCE BUCKET/PREFIX` takes the object store from the environment. It prints the seconds
without those of the imports, and the bytes that passed through its connections.
"""

import asyncio
import hashlib
import importlib
import json
import socket
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

_PARALLEL, _PARTS = 64, 8
"""Files and parts of a file that are sent at the same time, as in kfp_distributed.storage."""


class _CountedSocket(socket.socket):
    """A socket that counts the bytes of all connections without TLS."""

    moved = 0

    def sendall(self, data, *flags) -> None:  # noqa: ANN001, ANN002
        super().sendall(data, *flags)
        _CountedSocket.moved += memoryview(data).nbytes

    def recv_into(self, *arguments) -> int:  # noqa: ANN002
        count = super().recv_into(*arguments)
        _CountedSocket.moved += count
        return count


def upload(source: str, target: str) -> None:
    """Upload as `export_model` does with a model in a local folder."""
    from kfp_distributed.storage import open_store

    store = open_store(f"s3://{target}")
    if Path(source).is_dir():
        store.upload_folder(source)
    else:
        store.upload(source, Path(source).name)


def copy(source: str, target: str) -> None:
    """Copy as `export_model` does with a model that is in the same store."""
    from kfp_distributed.storage import open_store

    origin, store = open_store(f"s3://{source}"), open_store(f"s3://{target}")
    states = origin.states()
    with ThreadPoolExecutor(_PARALLEL) as pool:
        list(pool.map(lambda state: store.copy(origin, state.key, state.key, state.etag, state.size), states))


def minio(source: str, target: str) -> None:
    """Upload with minio-py alone. Each file is hashed too, as kfp_distributed.storage does for its manifests."""
    import os

    import certifi
    from minio import Minio
    from urllib3 import PoolManager

    url = urlsplit(os.environ["AWS_ENDPOINT_URL"])
    keys = (os.environ[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
    connections = PoolManager(maxsize=_PARALLEL, ca_certs=os.environ.get("AWS_CA_BUNDLE") or certifi.where())
    client = Minio(
        url.netloc, *keys, secure=url.scheme == "https", region=os.environ["AWS_REGION"], http_client=connections
    )
    bucket, _, prefix = target.partition("/")

    def put(file: Path, name: str) -> None:
        with file.open("rb") as stream:
            hashlib.file_digest(stream, "sha256")
        client.fput_object(bucket, f"{prefix}/{name}", str(file), part_size=2**23, num_parallel_uploads=_PARTS)

    with ThreadPoolExecutor(_PARALLEL) as pool:
        list(pool.map(put, *zip(*_files(source).items(), strict=True)))


def obstore(source: str, target: str) -> None:
    """Upload with obstore. Each file is hashed too, as kfp_distributed.storage does for its manifests."""
    from obstore.store import S3Store

    bucket, _, prefix = target.partition("/")
    store = S3Store(bucket, prefix=prefix, client_options={"allow_http": True}, virtual_hosted_style_request=False)

    async def put(file: Path, key: str, slots: asyncio.Semaphore) -> None:
        async with slots:
            if file.stat().st_size > 2**23:
                with file.open("rb") as stream:
                    await asyncio.to_thread(hashlib.file_digest, stream, "sha256")
                await store.put_async(key, file, chunk_size=2**23, max_concurrency=_PARTS)
            else:
                hashlib.sha256(data := file.read_bytes())
                await store.put_async(key, data, use_multipart=False)

    async def put_all() -> None:
        slots = asyncio.Semaphore(_PARALLEL)
        await asyncio.gather(*(put(path, key, slots) for path, key in _files(source).items()))

    asyncio.run(put_all())


def _files(source: str) -> dict[Path, str]:
    """Return the key of each file of a folder, or of one file."""
    root = Path(source)
    paths = [path for path in root.rglob("*") if path.is_file()]
    return {path: path.relative_to(root).as_posix() for path in paths} or {root: root.name}


WAYS: Mapping[str, tuple[Callable[[str, str], None], str]] = {
    "upload": (upload, "kfp_distributed.storage"),
    "copy": (copy, "kfp_distributed.storage"),
    "minio-py": (minio, "minio"),
    "obstore": (obstore, "obstore.store"),
}
"""The function of each way, and the module that it imports."""

if __name__ == "__main__":
    socket.socket = _CountedSocket  # type: ignore[misc]
    function, module = WAYS[sys.argv[1]]
    importlib.import_module(module)
    begin = time.perf_counter()
    function(*sys.argv[2:])
    print(json.dumps([time.perf_counter() - begin, _CountedSocket.moved]))
