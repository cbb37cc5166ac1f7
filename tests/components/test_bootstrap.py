"""The bootstrap of a compiled step: which library it imports, and its errors if there is none."""

import base64
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path

import pytest

from kfp_distributed.library.archive import make_archive, make_small_archive
from kfp_distributed.library.content import STEP_PACKAGES, content_hash, read_library

pytestmark = pytest.mark.takes(8)

NAME = "kfp-distributed-0.1.0-0123456789ab"
PATH = f"/api/v1/namespaces/team-a/configmaps/{NAME}"
SENTENCE = f"ConfigMap team-a/{NAME}: {{}}; run kfp-distributed install --namespace team-a"
FORBIDDEN = f'configmaps "{NAME}" is forbidden: User "system:serviceaccount:team-a:default-editor" cannot get resource'


def library(source: str) -> dict[str, bytes]:
    """Return a minimal library. The module that a step imports first has this source."""
    packages = {f"kfp_distributed/{package}/__init__.py": b"" for package in STEP_PACKAGES}
    return {**packages, **read_library(["library"]), "kfp_distributed/library/packages.py": source.encode()}


COMPILED = library("print('the library that compiled the step')")
OTHER = library("print('another version')")


@dataclass
class ApiServer:
    """A TLS server that sends its answers in order, and then repeats the last one.

    Attributes:
        account: The folder of the service account, as mounted in a pod.
        answers: Status and body. None closes the connection without a response.
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
    """Return a function that starts a step in a Python that has only the packages of `installed`."""

    def start(server: ApiServer, installed: dict[str, bytes] | None = None, before: str = ""):
        source = (files("kfp_distributed.library") / "bootstrap.py").read_text(encoding="utf-8")
        source = source.replace("@NAME@", NAME).replace("@HASH@", content_hash(COMPILED))
        source = source.replace("/var/run/secrets/kubernetes.io/serviceaccount", str(server.account))
        # Shorten the pauses from 8 s to 0.8 s.
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


def config_map(
    content: dict[str, bytes], pack: Callable[[dict[str, bytes]], bytes] = make_small_archive
) -> tuple[int, bytes]:
    archive = base64.b64encode(pack(content)).decode()
    return 200, json.dumps({"binaryData": {"library.zip": archive}}).encode()


def status(code: int, message: str) -> tuple[int, bytes]:
    return code, json.dumps({"kind": "Status", "code": code, "message": message}).encode()


def test_installed_library_with_the_same_hash_is_used(api_server, start_step):
    api_server.answers = [status(500, "asked")]
    done = start_step(api_server, installed=COMPILED)
    assert (done.returncode, done.stdout, api_server.requests) == (0, "the library that compiled the step\n", [])


@pytest.mark.parametrize(
    ("installed", "before"),
    [(None, ""), (OTHER, ""), (OTHER, "import kfp_distributed.library.archive")],
    ids=["nothing installed", "another version installed", "another version imported"],
)
def test_library_of_the_config_map_is_used_otherwise(api_server, start_step, installed, before):
    api_server.answers = [config_map(COMPILED)]
    done = start_step(api_server, installed, before)
    assert (done.returncode, done.stdout) == (0, "the library that compiled the step\n"), done.stderr
    assert api_server.requests == [(PATH, "Bearer the-token")]


def test_a_config_map_of_an_earlier_version_is_read(api_server, start_step):
    """Before 0.2 its archive had the files themselves."""
    api_server.answers = [config_map(COMPILED, make_archive)]
    done = start_step(api_server)
    assert (done.returncode, done.stdout) == (0, "the library that compiled the step\n"), done.stderr


def test_step_outside_of_a_pod_fails(start_step, tmp_path):
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
def test_permanent_errors_are_not_retried(api_server, start_step, answer, cause):
    api_server.answers = [answer]
    done = start_step(api_server)
    assert (done.returncode, done.stdout) == (1, "")
    account = " --service-account default-editor" if cause == FORBIDDEN else ""
    assert done.stderr == f"{SENTENCE.format(cause)}{account}\n"
    assert len(api_server.requests) == 1


def test_transient_errors_are_retried(api_server, start_step):
    code, body = config_map(COMPILED)
    # The first closes the connection, the second is from a load balancer, and the third is truncated.
    api_server.answers = [None, (503, b"no server"), (code, body[:1000]), (code, body)]
    done = start_step(api_server)
    assert (done.returncode, done.stdout) == (0, "the library that compiled the step\n"), done.stderr
    assert len(api_server.requests) == 4


def test_step_fails_after_five_attempts(api_server, start_step):
    api_server.answers = [(503, b"")]
    done = start_step(api_server)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"ConfigMap team-a/{NAME} cannot be read: OSError(503)\n"
    assert len(api_server.requests) == 5
