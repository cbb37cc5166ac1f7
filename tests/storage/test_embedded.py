"""The embedded S3 server: it starts with fresh credentials that nobody can see, and ends with us."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from process_hygiene import started

from kfp_distributed.storage import StorageError, credentials_from_environment, embedded_object_store, open_store

SERVE = """
import sys, time
from kfp_distributed.storage import embedded_object_store
with embedded_object_store(sys.argv[1]) as store:
    print(store.endpoint, flush=True)
    time.sleep(1000)
"""


def test_a_run_keeps_its_objects_and_no_credentials(tmp_path):
    with embedded_object_store(tmp_path / "data") as first:
        store = open_store("s3://models/digits", first.credentials())
        store.make_bucket()
        store.write("1/model", b"model")
        assert (tmp_path / "data/models/digits/1/model").read_bytes() == b"model"
    with embedded_object_store(tmp_path / "data") as second:
        assert second.secret_key != first.secret_key
        assert open_store("s3://models/digits", second.credentials()).read("1/model") == b"model"
        (tmp_path / "data/models/digits/2").mkdir()
        (tmp_path / "data/models/digits/2/model").write_bytes(b"by hand")
        by_hand = open_store("s3://models/digits/2", second.credentials())
        deadline = time.monotonic() + 20
        while not by_hand.exists("model") and time.monotonic() < deadline:
            time.sleep(0.1)
        assert by_hand.read("model") == b"by hand"
        outdated = replace(first.credentials(), endpoint=second.credentials().endpoint)
        with pytest.raises(StorageError, match="InvalidAccessKeyId"):
            open_store("s3://models", outdated).list()
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["models"]


def test_its_environment_leads_to_it_whatever_else_is_set(tmp_path):
    with embedded_object_store(tmp_path) as store:
        other = {"AWS_ENDPOINT_URL_S3": "https://other", "AWS_SESSION_TOKEN": "t", "AWS_DEFAULT_REGION": "moon"}
        assert credentials_from_environment(other | store.environment()) == store.credentials()


def test_settings_of_the_users_own_rclone_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setenv("RCLONE_READ_ONLY", "true")
    monkeypatch.setenv("RCLONE_ADDR", "0.0.0.0:1")
    monkeypatch.setenv("RCLONE_LOG_LEVEL", "ERROR")
    with embedded_object_store(tmp_path) as store:
        open_store("s3://bucket", store.credentials()).make_bucket()
        (server,) = servers_of(os.getpid(), tmp_path)
        assert {connection.laddr.ip for connection in server.net_connections()} == {"127.0.0.1"}


def test_nobody_sees_the_secret(tmp_path):
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
    """The servers of that folder among a process's children; other tests' servers may run beside."""
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if child.name() == "rclone" and child.cmdline()[-1] == str(folder)]


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_it_ends_with_us(tmp_path, end):
    with started([sys.executable, "-c", SERVE, tmp_path], stdout=subprocess.PIPE) as run:
        assert run.stdout.readline().startswith("http://127.0.0.1:")
        (server,) = servers_of(run.pid, tmp_path)
        getattr(run, end)()
    deadline = time.monotonic() + 20
    while server.is_running() and server.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


def test_it_ends_with_an_exception(tmp_path):
    with pytest.raises(LookupError), embedded_object_store(tmp_path):
        raise LookupError
    assert servers_of(os.getpid(), tmp_path) == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError), embedded_object_store(tmp_path / "file" / "data"):
        pass


def test_a_failed_start_shows_the_servers_last_lines(tmp_path, monkeypatch):
    program = tmp_path / "rclone"
    program.write_text("#!/bin/sh\nfor i in $(seq 20); do echo line $i; done\necho no disk >&2\nexit 7\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").symlink_to(os.path.realpath("/proc/self/exe"))
    with (
        pytest.raises(RuntimeError, match=r"ended with code 7\. Its last lines:\nline 12\n(.*\n){8}no disk$"),
        embedded_object_store(tmp_path / "data"),
    ):
        pass
