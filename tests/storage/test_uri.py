import pytest

from kfp_distributed.storage import Location, join_uri, parse_uri
from kfp_distributed.storage.files import relative_path
from kfp_distributed.storage.uri import uri_beside


@pytest.mark.parametrize(
    ("uri", "location"),
    [
        ("s3://bucket", Location("s3", "bucket", "")),
        ("s3://bucket/", Location("s3", "bucket", "")),
        ("S3://bucket/a/b/", Location("s3", "bucket", "a/b")),
        ("minio://mlpipeline/v2/artifacts/x", Location("s3", "mlpipeline", "v2/artifacts/x")),
        ("s3://bucket/a b+#ä%20", Location("s3", "bucket", "a b+#ä%20")),
        ("s3://bucket/a/b?endpoint=minio:9000&region=x", Location("s3", "bucket", "a/b")),
        ("file:///a/b%20c", Location("file", "", "/a/b c")),
        ("file:///a?b", Location("file", "", "/a?b")),
        ("/a/b c?#", Location("file", "", "/a/b c?#")),
        ("relative/path", Location("file", "", "relative/path")),
    ],
)
def test_parse_uri(uri, location):
    assert parse_uri(uri) == location


@pytest.mark.parametrize(
    ("uri", "redacted"),
    [
        ("gs://bucket/key", "gs://bucket"),
        ("https://host/key", "https://host"),
        ("s3:///key", "s3://"),
        ("minio://", "minio://"),
        ("file://relative", "file://relative"),
        ("", ""),
        ("s3://?region=s3cret", "s3://"),
        ("ftp://me:s3cret@host/x.csv?signature=s3cret", "ftp://host"),
        ("ftp://me:s3/cret@host/x.csv", "ftp://me"),
    ],
)
def test_parse_uri_error_contains_no_secret(uri, redacted):
    allowed = "s3://bucket/key, minio://bucket/key, file:///path or a local path"
    with pytest.raises(ValueError, match=f"^'{redacted}' is not .*{allowed}$"):
        parse_uri(uri)


@pytest.mark.parametrize(
    "uri", ["s3://me:s3cret@bucket/key", "minio://me@bucket", "s3://me:s3cret", "s3://me:s3/cret@bucket/key@alias"]
)
def test_the_address_of_a_bucket_with_a_password_is_refused_without_it(uri):
    with pytest.raises(ValueError, match="has a user name, a password or a port: remove them") as caught:
        parse_uri(uri)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "parts", "joined"),
    [
        ("s3://bucket", ("a", "b/c"), "s3://bucket/a/b/c"),
        ("s3://bucket/x/", ("/a/", "", "b"), "s3://bucket/x/a/b"),
        ("s3://bucket/x?region=y", ("a",), "s3://bucket/x/a?region=y"),
        ("/a?b/", ("c",), "/a?b/c"),
        ("file:///a?b", ("c",), "file:///a?b/c"),
        ("File:///a?b/", ("c",), "File:///a?b/c"),
        ("s3://bucket/x", (), "s3://bucket/x"),
        ("/", ("a",), "/a"),
    ],
)
def test_join_uri(uri, parts, joined):
    assert join_uri(uri, *parts) == joined


@pytest.mark.parametrize(
    ("uri", "beside"),
    [
        ("s3://bucket/run/model", "s3://bucket/run/a/b"),
        ("s3://bucket/run/model/", "s3://bucket/run/a/b"),
        ("s3://bucket/model?region=y/z", "s3://bucket/a/b?region=y/z"),
        ("/runs/model", "/runs/a/b"),
    ],
)
def test_uri_beside(uri, beside):
    assert uri_beside(uri, "a", "b") == beside


@pytest.mark.parametrize("key", ["a", "a/b", "..a/b..", "a b/ü", ".hidden"])
def test_relative_path(key):
    assert relative_path(key) == key


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\0b"])
def test_unsafe_relative_path(key):
    with pytest.raises(ValueError, match="is not a relative path"):
        relative_path(key)
