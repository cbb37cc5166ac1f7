"""The S3 store over TLS with a self-signed certificate."""

import re
import subprocess
import time
from dataclasses import replace

import pytest

from kfp_distributed.processes import ProcessGroup
from kfp_distributed.storage import Credentials, StorageError, credentials_from_environment, open_store
from kfp_distributed.storage.object_stores.embedded import rclone


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A folder with a self-signed certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    output = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run([*request.split(), *output], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def credentials(certificate, tmp_path_factory):
    """Credentials of a TLS server, without its certificate authority."""
    log = certificate / "log"
    argv = [rclone(), "serve", "s3", "--addr", "127.0.0.1:0", "--auth-key", "accesskey,hush-hush-hush"]
    argv += ["--cert", str(certificate / "cert.pem"), "--key", str(certificate / "key.pem")]
    with ProcessGroup() as group, log.open("wb") as output:
        server = group.start("server", [*argv, str(tmp_path_factory.mktemp("objects"))], stdout=output)
        while not (endpoint := re.search(r"https://127.0.0.1:\d+", log.read_text())):
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        keys = {"AWS_ACCESS_KEY_ID": "accesskey", "AWS_SECRET_ACCESS_KEY": "hush-hush-hush"}
        yield credentials_from_environment(keys | {"AWS_ENDPOINT_URL": endpoint[0]})


def test_trusted_certificate(credentials, certificate, tmp_path):
    store = open_store("s3://bucket/a", replace(credentials, ca_bundle=str(certificate / "cert.pem")))
    store.make_bucket()
    (tmp_path / "up").write_bytes(b"x" * (20 << 20))
    assert store.upload(tmp_path / "up", "ä b") == store.download("ä b", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == (tmp_path / "up").read_bytes()


def test_untrusted_certificate_fails_without_retries(credentials):
    start = time.monotonic()
    with pytest.raises(StorageError, match=r"set AWS_CA_BUNDLE .*CERTIFICATE_VERIFY_FAILED.*self-signed") as error:
        open_store("s3://bucket", credentials).read("key")
    assert time.monotonic() - start < 30
    assert type(error.value) is StorageError
    assert str(error.value).startswith(f"https://{credentials.endpoint}, bucket 'bucket', key 'key': ")
    assert "hush" not in repr(error.getrepr())


def test_certificate_for_another_host(credentials, certificate):
    localhost = replace(
        credentials,
        endpoint=credentials.endpoint.replace("127.0.0.1", "localhost"),
        ca_bundle=str(certificate / "cert.pem"),
    )
    with pytest.raises(StorageError, match=r"check AWS_ENDPOINT_URL .*'localhost'"):
        open_store("s3://bucket", localhost).read("key")


def test_wrong_scheme_of_the_endpoint(credentials, server):
    plain = server.credentials()
    with pytest.raises(StorageError, match=r"key 'key': .* AWS_ENDPOINT_URL with http:// \(SSLError: "):
        open_store("s3://bucket", replace(plain, secure=True)).read("key")
    with pytest.raises(StorageError, match=r"key 'key': .* AWS_ENDPOINT_URL with https:// "):
        open_store("s3://bucket", Credentials(credentials.endpoint, "me", "hush", secure=False)).read("key")


def test_ca_bundle_without_a_certificate(credentials, tmp_path):
    (tmp_path / "bundle").write_text("nothing")
    with pytest.raises(StorageError, match="set AWS_CA_BUNDLE to a PEM file"):
        open_store("s3://bucket", replace(credentials, ca_bundle=str(tmp_path / "bundle"))).read("key")
