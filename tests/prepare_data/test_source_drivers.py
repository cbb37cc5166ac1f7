"""Sources of clouds: the real drivers, with servers on this machine that speak the protocols of the clouds."""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from faulty_proxy import Fault, faulty_proxy
from forked_replicas import forked
from gcp_storage_emulator.server import create_server
from hugging_face_hub import hub

from kfp_distributed.components.external_services import request_retries, source_drivers
from kfp_distributed.components.external_services.source_drivers import BLOCK_BYTES, DRIVERS
from kfp_distributed.components.fingerprint_source.step import run_step
from kfp_distributed.components.prepare_data.sources.fetch import local_copy
from kfp_distributed.components.train.run.runners.local.ports import free_ports
from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.library.start import INSTALLS_PACKAGES

pytestmark = pytest.mark.takes(55)

ROWS = "x,label\n" + "1,a\n2,b\n" * 10
# The server of the tests loses line ends at the end of an object.
BIG = os.urandom(BLOCK_BYTES + 1000) + b"."


@pytest.fixture(scope="module")
def google():
    """Address of a server with the API of Google Cloud Storage, and a bucket "data"."""
    [port] = free_ports(1)
    server = create_server("127.0.0.1", port, in_memory=True, default_bucket="data")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def bucket(google, monkeypatch):
    """A real client of the bucket "data", which is empty but for three files."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", google)
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # As RemoteFiles does, before the import.
    import gcsfs

    client = gcsfs.GCSFileSystem(token="anon", endpoint_url=google, skip_instance_cache=True, use_listings_cache=False)
    for path in client.find("data"):
        client.rm_file(path)
    for name in ("one.csv", "many/a.csv", "many/deep/b.csv"):
        client.pipe_file(f"data/{name}", ROWS.encode())
    return client


def files(folder):
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def test_files_and_folders_of_google_cloud_storage(bucket, run, tmp_path, capsys):
    assert run("gs://data/one.csv", "one", shards=1)["train"].rows == 16
    assert "downloading gs://data/one.csv, 88 bytes" in capsys.readouterr().out
    copy = local_copy("GS://data/many/", tmp_path)
    assert (copy.name, files(copy)) == ("many", ["a.csv", "deep/b.csv"])
    assert (copy / "a.csv").read_text() == ROWS
    assert files(local_copy("gcs://data", tmp_path)) == ["many/a.csv", "many/deep/b.csv", "one.csv"]
    with pytest.raises(ValueError, match=r"source gs://data/none does not exist: .* set the credentials"):
        local_copy("gs://data/none", tmp_path)
    with pytest.raises(ValueError, match="source gs:// has no bucket"):
        local_copy("gs://", tmp_path)


def test_a_name_with_a_number_sign_keeps_its_ending(bucket, run, tmp_path):
    bucket.pipe_file("data/a#b.csv", ROWS.encode())
    assert local_copy("gs://data/a#b.csv", tmp_path).name == "a#b.csv"


def test_an_object_whose_key_is_a_folder_of_others(bucket, tmp_path):
    """On a disk, a file cannot have the name of a folder."""
    for name in ("x/a", "x/a/b.csv"):
        bucket.pipe_file(f"data/{name}", ROWS.encode())
    with pytest.raises(ValueError, match=r"gs://data/x has the object 'a' and objects below 'a/'.*: rename") as caught:
        local_copy("gs://data/x", tmp_path)
    assert str(tmp_path) not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_fingerprint_of_google_cloud_storage(bucket):
    before = [run_step(source=f"gs://data/{path}") for path in ("one.csv", "many")]
    assert [value.split()[1:] for value in before] == [["files=1", "bytes=88"], ["files=2", "bytes=176"]]
    assert run_step(source="gs://data/many/") == before[1]
    bucket.pipe_file("data/many/a.csv", ROWS.replace("1", "3").encode())
    after = [run_step(source=f"gs://data/{path}") for path in ("one.csv", "many")]
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)
    with pytest.raises(SystemExit, match="gs://data/none does not exist"):
        run_step(source="gs://data/none")


def test_a_size_above_the_limit(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("KFP_DISTRIBUTED_SOURCE_LIMIT", "100")
    assert local_copy("gs://data/one.csv", tmp_path / "a").read_text() == ROWS
    with pytest.raises(OSError, match="gs://data/many cannot be downloaded: it has 176 bytes: more than the 100 bytes"):
        local_copy("gs://data/many", tmp_path)
    assert files(tmp_path) == ["a/one.csv"]


class EncodedObject(http.server.BaseHTTPRequestHandler):
    """The part of the API of Google Cloud Storage that has an object of `gsutil cp -Z`."""

    def do_GET(self):
        state = {"kind": "storage#object", "name": "one.csv", "bucket": "data", "size": "40", "contentEncoding": "gzip"}
        listed = {"kind": "storage#objects", "items": [state]}
        answer = json.dumps(state if "/o/" in self.path else listed).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass


@pytest.mark.parametrize("path", ["one.csv", ""])
def test_an_object_with_a_content_encoding_is_refused(tmp_path, monkeypatch, path):
    """Google sends it unpacked, so that its parts are not those that were requested."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EncodedObject) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(OSError, match=r"data/one\.csv has Content-Encoding: gzip.*--clear-content-encoding"):
            local_copy(f"gs://data/{path}", tmp_path)
        server.shutdown()


@pytest.mark.takes(60)
def test_faults_of_a_cloud(google, bucket, tmp_path, monkeypatch, caplog):
    bucket.pipe_file("data/big.npz", BIG)
    with faulty_proxy(google) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        # More than the retries of the driver, which end after six requests.
        proxy.faults = [Fault("alt=media", times=8, status=503), Fault("alt=media", times=1, cut_after=1 << 20)]
        assert local_copy("gs://data/big.npz", tmp_path).read_bytes() == BIG
        assert [record for record in caplog.records if record.name.startswith("gcsfs")] == []
        monkeypatch.setattr(request_retries, "RETRY_SECONDS", 1.0)
        proxy.faults = [Fault("alt=media", times=10**6, status=403)]
        with pytest.raises(OSError, match=r"source gs://data/big\.npz cannot be downloaded: ") as caught:
            local_copy("gs://data/big.npz", tmp_path / "b")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "b").iterdir()) == []


def test_a_file_that_changes_during_the_download(google, bucket, tmp_path, monkeypatch):
    with faulty_proxy(google) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        change = Fault("alt=media", before=lambda: bucket.pipe_file("data/one.csv", ROWS.replace("1", "3").encode()))
        proxy.faults = [change]
        with pytest.raises(OSError, match=r"one\.csv cannot be downloaded: its files changed during the download"):
            local_copy("gs://data/one.csv", tmp_path)
    assert list(tmp_path.iterdir()) == []


AZURITE = shutil.which("azurite-blob")
# The public keys of the emulator.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture
def azure(tmp_path, monkeypatch):
    """A server with the API of Azure Blob Storage, and a container "data" with three files."""
    import adlfs

    [port] = free_ports(1)
    arguments = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(tmp_path / "azurite")]
    arguments += ["--skipApiVersionCheck", "--disableTelemetry"]
    with subprocess.Popen([str(AZURITE), *arguments], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert any("successfully listens" in line for line in server.stdout)
            connection = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            connection += f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
            client = adlfs.AzureBlobFileSystem(connection_string=connection, skip_instance_cache=True)
            client.mkdir("data")
            for name in ("one.csv", "many/a.csv", "many/deep/b.csv"):
                client.pipe_file(f"data/{name}", ROWS.encode())
            yield client
        finally:
            server.terminate()


@pytest.mark.skipif(not AZURITE, reason="needs azurite: npm install --global azurite")
def test_files_and_folders_of_azure(azure, run, tmp_path):
    for number, address in enumerate(["az://data", "abfs://data", f"abfss://data@{ACCOUNT}.dfs.core.windows.net"]):
        scratch = tmp_path / str(number)
        assert local_copy(f"{address}/one.csv", scratch).read_text() == ROWS
        assert files(local_copy(f"{address}/many", scratch)) == ["a.csv", "deep/b.csv"]
    assert run("az://data/one.csv", "one", shards=1)["train"].rows == 16
    before = [run_step(source=f"az://data/{path}") for path in ("one.csv", "many")]
    azure.pipe_file("data/many/a.csv", ROWS.replace("1", "3").encode(), overwrite=True)
    after = [run_step(source=f"az://data/{path}") for path in ("one.csv", "many")]
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)
    with pytest.raises(ValueError, match="source az://data/none does not exist"):
        local_copy("az://data/none", tmp_path)


def test_azure_without_an_account(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with pytest.raises(ValueError, match=r"source az://\.\.\. lacks an account or a setting: .*account_name"):
        local_copy("az://data/one.csv", tmp_path)


AZURE_VARIABLES = "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN"


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        (
            "AZURE_STORAGE_CONNECTION_STRING",
            "BlobEndpoint=http://127.0.0.1:1/acc;SharedAccessSignature=sv=1&sig=s3cr3t",
            "Cannot connect to host",
        ),
        ("AZURE_STORAGE_ACCOUNT_NAME", "acc", "failed to retrieve a token from the included credentials"),
    ],
)
def test_azure_fails_soon_at_the_first_contact(tmp_path, monkeypatch, caplog, name, value, cause):
    """The retries of the driver take almost three minutes."""
    for variable in [variable for variable in os.environ if variable.startswith("AZURE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv(name, value)
    started = time.monotonic()
    with pytest.raises(OSError, match=f"one.csv cannot be downloaded: .*{cause}.* Check {AZURE_VARIABLES}") as caught:
        local_copy("az://data/one.csv", tmp_path)
    assert time.monotonic() - started < 100
    assert "s3cr3t" not in str(caught.value)
    assert [record for record in caplog.records if record.name.startswith("azure")] == []


HUB_FILES = {
    ".gitattributes": "*.parquet filter=lfs",
    "README.md": "# Rows",
    "a.csv": ROWS,
    "b.csv": ROWS,
    "data/train-00000-of-00001.csv": ROWS,
}


NOT_IMPORTED = """
import sys
assert "huggingface_hub" not in sys.modules
"""
PROGRAM = """
import sys
from pathlib import Path
from kfp_distributed.components.fingerprint_source.step import run_step
from kfp_distributed.components.prepare_data.sources.fetch import local_copy
for source in sys.argv[2:]:
    copy = local_copy(source, Path(sys.argv[1]))
    names = sorted(file.relative_to(copy).as_posix() for file in copy.rglob("*.*")) if copy.is_dir() else ["file"]
    print("copy", copy.name, *names)
    run_step(source=source)
"""


def read_by_hub(address, scratch, *sources):
    """Return the lines about each source. The driver reads its variables when it is imported, so a fork imports it."""
    environment = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(scratch / "home")}
    command = forked(sys.executable, "-c", f"{NOT_IMPORTED}{PROGRAM}", str(scratch / "copies"), *sources)
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    return ended.returncode, ended.stdout, ended.stderr


def test_a_dataset_of_hugging_face(tmp_path):
    content = dict(HUB_FILES)
    sources = ["hf://datasets/team/rows", "hf://datasets/team/rows/data", "hf://datasets/team/rows@main/a.csv"]
    with hub("datasets", "rows", content) as address:
        code, printed, errors = read_by_hub(address, tmp_path, *sources)
        assert code == 0, errors
        assert re.findall("copy .*", printed) == [
            "copy rows a.csv b.csv data/train-00000-of-00001.csv",
            "copy data train-00000-of-00001.csv",
            "copy a.csv file",
        ]
        before = re.findall("sha256:.*", printed)
        assert [value.split()[1] for value in before] == ["files=3", "files=1", "files=1"]
        assert (tmp_path / "copies" / "rows" / "a.csv").read_text() == ROWS
        content["data/train-00000-of-00001.csv"] = ROWS.replace("1", "3")
        after = re.findall("sha256:.*", read_by_hub(address, tmp_path, *sources)[1])
        assert [new == old for new, old in zip(after, before, strict=True)] == [False, False, True]
        code, _, errors = read_by_hub(address, tmp_path, "hf://datasets/team/none")
        assert code == 1
        assert "ValueError: source hf://datasets/team/none does not exist" in errors


@pytest.mark.parametrize("address", ["hf://me:s3cr3t@datasets/team/rows", "hf://s3cr3t@", "gs://me:s3/cr3t@data/a.csv"])
def test_a_user_in_the_address_is_refused_and_not_shown(tmp_path, address):
    with pytest.raises(ValueError, match="has a user or password in its address") as caught:
        local_copy(address, tmp_path)
    assert not re.search("s3|cr3t", str(caught.value))


def test_an_error_of_a_driver_does_not_show_a_query(tmp_path):
    with pytest.raises(ValueError, match=r"got 'o\?\*\*\*'") as caught:
        local_copy("hf://datasets/o?x=s3cr3t", tmp_path)
    assert "s3cr3t" not in str(caught.value)


def test_a_token_with_another_letter_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_s3cr\u00e4t")
    with pytest.raises(ValueError, match="HF_TOKEN has a character that is not ASCII") as caught:
        local_copy("hf://datasets/team/rows", tmp_path)
    assert "s3cr" not in str(caught.value)


def test_a_missing_driver_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv(INSTALLS_PACKAGES, raising=False)
    monkeypatch.setattr(source_drivers, "find_spec", lambda module: None)
    for scheme, driver in DRIVERS.items():
        with pytest.raises(ValueError, match=f"{scheme}://... needs the Python package {driver.module}") as caught:
            local_copy(f"{scheme}://data/one.csv", tmp_path)
        assert f"pip install 'kfp-distributed[{driver.extra}]'" in str(caught.value)
        assert f"make image-steps DRIVERS='{driver.requirement}'" in str(caught.value)


def test_the_extras_have_the_drivers():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for driver in DRIVERS.values():
        assert f'\n{driver.extra} = ["{driver.requirement}"]\n' in project


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("abfs://data@account.dfs.core.windows.net/a.csv?sig=s3cret", "abfs://data@account.dfs.core.windows.net/a.csv"),
        ("hf://datasets/team/rows@main/a.csv", "hf://datasets/team/rows@main/a.csv"),
        ("gs://data/a@b.csv", "gs://data/a@b.csv"),
    ],
)
def test_the_address_of_a_cloud_is_shown(source, expected):
    assert without_secrets(source) == expected
