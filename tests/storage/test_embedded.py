"""The embedded S3 server: its credentials, and its end together with its parent process."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from process_hygiene import is_alive, started

from kfp_distributed.storage import StorageError, credentials_from_environment, embedded_object_store, open_store

pytestmark = pytest.mark.takes(2)

SERVE = """
import sys, time
from kfp_distributed.storage import embedded_object_store
with embedded_object_store(sys.argv[1]) as store:
    print(store.endpoint, flush=True)
    time.sleep(1000)
"""


def test_objects_persist_and_credentials_do_not(tmp_path):
    with embedded_object_store(tmp_path / "data") as first:
        store = open_store("s3://models/digits", first.credentials())
        store.make_bucket()
        store.write("1/model", b"model")
        assert (tmp_path / "data/models/digits/1/model").read_bytes() == b"model"
    with embedded_object_store(tmp_path / "data") as second:
        assert second.secret_key != first.secret_key
        assert open_store("s3://models/digits", second.credentials()).read("1/model") == b"model"
        (tmp_path / "data/models/digits/2").mkdir()
        (tmp_path / "data/models/digits/2/model").write_bytes(b"file")
        second_version = open_store("s3://models/digits/2", second.credentials())
        deadline = time.monotonic() + 120
        while not second_version.exists("model") and time.monotonic() < deadline:
            time.sleep(0.1)
        assert second_version.read("model") == b"file"
        outdated = replace(first.credentials(), endpoint=second.credentials().endpoint)
        with pytest.raises(StorageError, match="InvalidAccessKeyId"):
            open_store("s3://models", outdated).list()
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["models"]


def test_environment_overrides_other_variables(tmp_path):
    with embedded_object_store(tmp_path) as store:
        other = {"AWS_ENDPOINT_URL_S3": "https://other", "AWS_SESSION_TOKEN": "t", "AWS_DEFAULT_REGION": "moon"}
        assert credentials_from_environment(other | store.environment()) == store.credentials()


def test_rclone_settings_of_the_user_are_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("RCLONE_READ_ONLY", "true")
    monkeypatch.setenv("RCLONE_ADDR", "0.0.0.0:1")
    monkeypatch.setenv("RCLONE_LOG_LEVEL", "ERROR")
    with embedded_object_store(tmp_path) as store:
        open_store("s3://bucket", store.credentials()).make_bucket()
        (server,) = servers_of(os.getpid(), tmp_path)
        assert {connection.laddr.ip for connection in server.net_connections()} == {"127.0.0.1"}


def test_arguments_output_and_repr_contain_no_secret(tmp_path):
    with embedded_object_store(tmp_path) as store:
        (server,) = servers_of(os.getpid(), tmp_path)
        arguments = " ".join(server.cmdline())
        assert store.secret_key not in arguments + repr(store) + repr(store.credentials())
        assert store.access_key not in arguments
        with pytest.raises(StorageError):
            open_store("s3://no-bucket", store.credentials()).list()
        output = Path(f"/proc/{server.pid}/fd/1").read_text()
        assert "Starting s3 server" in output
        assert store.secret_key not in output


def servers_of(pid, folder):
    """Return the rclone processes that serve a folder. Servers of other tests may run at the same time."""
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if child.name() == "rclone" and child.cmdline()[-1] == str(folder)]


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_server_ends_with_its_parent_process(tmp_path, end):
    with started([sys.executable, "-c", SERVE, tmp_path], stdout=subprocess.PIPE) as run:
        assert run.stdout.readline().startswith("http://127.0.0.1:")
        (server,) = servers_of(run.pid, tmp_path)
        getattr(run, end)()
    deadline = time.monotonic() + 120
    while is_alive(server) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(server)


def test_server_ends_after_an_exception(tmp_path):
    with pytest.raises(LookupError), embedded_object_store(tmp_path):
        raise LookupError
    assert servers_of(os.getpid(), tmp_path) == []


def test_folder_cannot_be_created(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError), embedded_object_store(tmp_path / "file" / "data"):
        pass


def test_failed_start_shows_the_last_lines_of_the_output(tmp_path, monkeypatch):
    program = tmp_path / "rclone"
    program.write_text("#!/bin/sh\nfor i in $(seq 20); do echo line $i; done\necho no disk >&2\nexit 7\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").symlink_to(os.path.realpath("/proc/self/exe"))
    with (
        pytest.raises(RuntimeError, match=r" code 7\..*:\nline 12\n(.*\n){8}no disk$"),
        embedded_object_store(tmp_path / "data"),
    ):
        pass
