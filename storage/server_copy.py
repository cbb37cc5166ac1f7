"""Copy an object inside an S3 server, if it is still the one that was listed."""

from minio import Minio
from minio.commonconfig import CopySource
from minio.error import MinioException


class ObjectReplaced(Exception):
    """The object to copy has another ETag than expected."""


def copy_on_server(client: Minio, source_bucket: str, source_key: str, bucket: str, key: str, etag: str = "") -> None:
    """Copy an object. No content passes through this process. minio-py copies more than 5 GiB in parts.

    Not all servers check the ETag: `rclone serve s3` ignores it.

    Args:
        client: Client of the server.
        source_bucket: Bucket of the object to copy.
        source_key: Its key.
        bucket: Bucket of the copy.
        key: Key of the copy.
        etag: ETag that the object must have, as listed. Default: not checked.

    Raises:
        ObjectReplaced: The object has another ETag.
        Exception: What minio-py and urllib3 raise.
    """
    try:
        client.copy_object(bucket, key, CopySource(source_bucket, source_key, match_etag=etag or None))
    except MinioException as error:
        if not etag or "PreconditionFailed" not in str(error):
            raise
        # SeaweedFS before 4.0 compares the MD5 of the content, which a multipart upload's ETag is not.
        if (client.stat_object(source_bucket, source_key).etag or "").strip('"') != etag.strip('"'):
            raise ObjectReplaced from None
        client.copy_object(bucket, key, CopySource(source_bucket, source_key))
