"""Copy an object inside an S3 server, if it is still the one that was listed.

Uses a private method of minio-py (7.2).
"""

from minio import Minio
from minio.commonconfig import CopySource
from minio.error import MinioException

_LARGEST_COPY = 5 << 30
"""Largest object in bytes that S3 copies by one request."""


class ObjectReplaced(Exception):
    """The object to copy has another ETag than expected."""


def copy_on_server(
    client: Minio, source_bucket: str, source_key: str, bucket: str, key: str, etag: str = "", size: int = -1
) -> None:
    """Copy an object. No content passes through this process. minio-py copies more than 5 GiB in parts.

    Not all servers check the ETag: `rclone serve s3` ignores it.

    Args:
        client: Client of the server.
        source_bucket: Bucket of the object to copy.
        source_key: Its key.
        bucket: Bucket of the copy.
        key: Key of the copy.
        etag: ETag that the object must have, as listed. Default: not checked.
        size: Size of the object in bytes, as listed. Default: the server is asked for it by one more request.

    Raises:
        ObjectReplaced: The object has another ETag.
        Exception: What minio-py and urllib3 raise.
    """
    try:
        _copy(client, CopySource(source_bucket, source_key, match_etag=etag or None), bucket, key, size)
    except MinioException as error:
        if not etag or "PreconditionFailed" not in str(error):
            raise
        # SeaweedFS before 4.0 compares the MD5 of the content, which a multipart upload's ETag is not.
        if (client.stat_object(source_bucket, source_key).etag or "").strip('"') != etag.strip('"'):
            raise ObjectReplaced from None
        _copy(client, CopySource(source_bucket, source_key), bucket, key, size)


def _copy(client: Minio, source: CopySource, bucket: str, key: str, size: int) -> None:
    if not 0 <= size <= _LARGEST_COPY or not hasattr(client, "_execute"):
        client.copy_object(bucket, key, source)
        return
    # `copy_object` of minio-py always requests the size.
    answer = client._execute("PUT", bucket, key, headers=source.gen_copy_headers()).data.decode()
    # S3 sends the status 200 before it copies.
    if "<Error>" in answer:
        raise MinioException(answer)
