"""The bootstrap of a compiled step: which library it imports, and what it says where there is none."""

import base64
import json
import os
import ssl
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path

import pytest

from kfp_distributed.library.archive import make_archive
from kfp_distributed.library.content import STEP_ROOMS, content_hash, read_library

NAME = "kfp-distributed-0.1.0-0123456789ab"
PATH = f"/api/v1/namespaces/team-a/configmaps/{NAME}"
SENTENCE = f"ConfigMap team-a/{NAME}: {{}}; run kfp-distributed install --namespace team-a"
FORBIDDEN = f'configmaps "{NAME}" is forbidden: User "system:serviceaccount:team-a:default-editor" cannot get resource'


def library(source: str) -> dict[str, bytes]:
    """A library that is complete for the bootstrap. The module that a step imports first has this source."""
    rooms = {f"kfp_distributed/{room}/__init__.py": b"" for room in STEP_ROOMS}
    return {**rooms, **read_library(["library"]), "kfp_distributed/library/packages.py": source.encode()}


COMPILED = library("print('the library that compiled the step')")
OTHER = library("print('another version')")


@dataclass
class ApiServer:
    """A server over TLS that gives its answers in turn, and then the last one again and again.

    Attributes:
        account: The folder with what a pod has of its service account.
        answers: Status and body; None closes the connection without an answer.
        requests: Path and token of each request.
    """

    account: Path
    port: int = 0
    answers: list[tuple[int, bytes] | None] = field(default_factory=list)
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def answer(self) -> tuple[int, bytes] | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture(scope="module")
def account(tmp_path_factory):
    folder = tmp_path_factory.mktemp("account")
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [*request.split(), "-keyout", folder / "key", "-out", folder / "ca.crt"], check=True, stderr=subprocess.DEVNULL
    )
    (folder / "namespace").write_text("team-a")
    (folder / "token").write_text("the-token\n")
    return folder


@pytest.fixture
def api_server(account):
    state = ApiServer(account)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state.requests.append((self.path, self.headers["Authorization"]))
            if answer := state.answer():
                self.send_response(answer[0])
                self.end_headers()
                self.wfile.write(answer[1])

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(account / "ca.crt", account / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    state.port = server.server_port
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture
def start_step(tmp_path):
    """Runs the start of a step, in a Python that has no packages but those of `installed`."""

    def start(server: ApiServer, installed: dict[str, bytes] | None = None, before: str = ""):
        source = (files("kfp_distributed.library") / "bootstrap.py").read_text(encoding="utf-8")
        source = source.replace("@NAME@", NAME).replace("@HASH@", content_hash(COMPILED))
        source = source.replace("/var/run/secrets/kubernetes.io/serviceaccount", str(server.account))
        # Waits of up to a second instead of ten.
        source = source.replace("time.sleep(pause)", "time.sleep(pause / 10)")
        packages, scratch = tmp_path / "packages", tmp_path / "scratch"
        scratch.mkdir()
        for path, content in (installed or {}).items():
            (packages / path).parent.mkdir(parents=True, exist_ok=True)
            (packages / path).write_bytes(content)
        return subprocess.run(
            [sys.executable, "-S", "-c", f"{before}\n{source}\nimport kfp_distributed.library.packages"],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(packages),
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(server.port),
                "TMPDIR": str(scratch),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    return start


def config_map(content: dict[str, bytes]) -> tuple[int, bytes]:
    archive = base64.b64encode(make_archive(content)).decode()
    return 200, json.dumps({"binaryData": {"library.zip": archive}}).encode()


def status(code: int, message: str) -> tuple[int, bytes]:
    return code, json.dumps({"kind": "Status", "code": code, "message": message}).encode()


def test_an_installed_library_with_the_same_hash_is_used_and_nothing_is_fetched(api_server, start_step):
    api_server.answers = [status(500, "asked")]
    done = start_step(api_server, installed=COMPILED)
    assert (done.returncode, done.stdout, api_server.requests) == (0, "the library that compiled the step\n", [])


@pytest.mark.parametrize(
    ("installed", "before"),
    [(None, ""), (OTHER, ""), (OTHER, "import kfp_distributed.library.archive")],
    ids=["nothing installed", "another version installed", "another version imported"],
)
def test_else_the_library_of_the_config_map_is_used(api_server, start_step, installed, before):
    api_server.answers = [config_map(COMPILED)]
    done = start_step(api_server, installed, before)
    assert (done.returncode, done.stdout) == (0, "the library that compiled the step\n"), done.stderr
    assert api_server.requests == [(PATH, "Bearer the-token")]


def test_without_a_pod_the_step_ends_with_a_sentence(start_step, tmp_path):
    done = start_step(ApiServer(tmp_path / "no-pod"), installed=OTHER)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{sys.executable} lacks {NAME}: install it, or compile anew\n"


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (status(404, f'configmaps "{NAME}" not found'), f'configmaps "{NAME}" not found'),
        (status(403, FORBIDDEN), FORBIDDEN),
        (config_map(OTHER), "its content has another hash"),
        ((200, b'{"binaryData": {"library.zip": "bm8gemlw"}}'), "File is not a zip file"),
    ],
    ids=["missing", "forbidden", "another hash", "no archive"],
)
def test_what_no_other_attempt_mends_ends_the_step_at_once(api_server, start_step, answer, cause):
    api_server.answers = [answer]
    done = start_step(api_server)
    assert (done.returncode, done.stdout) == (1, "")
    account = " --service-account default-editor" if cause == FORBIDDEN else ""
    assert done.stderr == f"{SENTENCE.format(cause)}{account}\n"
    assert len(api_server.requests) == 1


def test_an_api_server_that_is_away_for_some_seconds_is_asked_again(api_server, start_step):
    code, body = config_map(COMPILED)
    # One closes the connection, one comes from a load balancer, and one breaks off.
    api_server.answers = [None, (503, b"no server"), (code, body[:1000]), (code, body)]
    done = start_step(api_server)
    assert (done.returncode, done.stdout) == (0, "the library that compiled the step\n"), done.stderr
    assert len(api_server.requests) == 4


def test_an_api_server_that_stays_away_ends_the_step(api_server, start_step):
    api_server.answers = [(503, b"")]
    done = start_step(api_server)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"ConfigMap team-a/{NAME} cannot be read: OSError(503)\n"
    assert len(api_server.requests) == 5
