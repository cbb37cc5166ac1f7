"""Processes that post their progress to an HTTPS server with a certificate authority of its own."""

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from environments import program

from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.runtime.monitoring.progress import Progress
from kfp_distributed.trainers.runtime.monitoring.status_server import (
    CA_VARIABLE,
    REPORTER_VARIABLE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    StatusPosts,
    post_status,
)
from kfp_distributed.trainers.runtime.monitoring.trainer_status import TimedProgress

pytestmark = pytest.mark.takes(6)

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/train-1/status"
BODY = {"trainerStatus": {"lastUpdatedTime": "2026-11-23T14:05:12Z"}}


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, self.headers["Authorization"], body))
        status = self.server.answers.pop(0) if self.server.answers else 200
        answer = (
            json.dumps({"kind": "Status", "message": "no"}).encode() if status != 200 else json.dumps(body).encode()
        )
        self.send_response(status)
        if status == 307:
            self.send_header("Location", "https://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A folder with an authority (ca.pem), a certificate that it has signed (cert.pem), and another authority."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments):
        subprocess.run([program("openssl"), *arguments], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "other"):
        new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}")
        new += ("-addext", "keyUsage=critical,keyCertSign")  # Python 3.13 wants it, and to know who signs.
        openssl(*new, "-keyout", f"{name}-key.pem", "-out", f"{name}.pem")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=server", "-keyout", "key.pem", "-out", "request.pem")
    signed_by = ("-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial")
    openssl("x509", "-req", "-in", "request.pem", *signed_by, "-days", "2", "-extfile", "names", "-out", "cert.pem")
    return folder


@pytest.fixture
def server(certificates):
    """An HTTPS server. `requests` has what it received, `answers` the next status codes; the default is 200."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.requests, server.answers = [], []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def environment(server, certificates, tmp_path):
    """The variables that Kubeflow Trainer sets. A proxy that does not exist must not be used."""
    (tmp_path / "token").write_text("first.token\n")
    return {
        URL_VARIABLE: f"https://127.0.0.1:{server.server_port}{PATH}",
        CA_VARIABLE: str(certificates / "ca.pem"),
        TOKEN_VARIABLE: str(tmp_path / "token"),
        "https_proxy": "http://127.0.0.1:1",
    }


def test_each_request_has_the_token_of_that_time(server, environment, tmp_path):
    post_status(BODY, environment)
    (tmp_path / "token").write_text("second.token")
    post_status(BODY, environment)
    assert server.requests == [
        (PATH, "Bearer first.token", BODY),
        (PATH, "Bearer second.token", BODY),
    ]


@pytest.mark.parametrize("status", [307, 403, 404, 422, 500])
def test_a_refused_request_has_the_reason_in_its_error(server, environment, status):
    server.answers = [status]
    with pytest.raises(OSError, match=rf'^{status} .*: {{"kind": "Status", "message": "no"}}$'):
        post_status(BODY, environment)
    assert len(server.requests) == 1


def test_a_server_of_another_authority_gets_no_token(server, environment, certificates):
    with pytest.raises(ssl.SSLCertVerificationError):
        post_status(BODY, environment | {CA_VARIABLE: str(certificates / "other.pem")})
    assert server.requests == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [(URL_VARIABLE, "http://127.0.0.1:1/status"), (URL_VARIABLE, "https:///status")],
)
def test_an_address_without_tls_gets_no_token(environment, variable, value):
    error = f"^{variable} is '{value}'; allowed is https://HOST:PORT/PATH$"
    with pytest.raises(ValueError, match=error):
        post_status(BODY, environment | {variable: value})


def test_a_malformed_token_is_not_in_the_error(environment, tmp_path):
    (tmp_path / "token").write_text("secret\r\nX: y")
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path / 'token'))} contains no token$"):
        post_status(BODY, environment)


def end(epoch):
    return TimedProgress(Progress(epoch, 10), 1795442712.0 + epoch)


def percentages(bodies):
    return [body["trainerStatus"]["progressPercentage"] for body in bodies]


def test_the_first_and_the_last_epoch_are_posted_and_those_within_the_interval_are_not():
    bodies, posted = [], threading.Event()

    def post(body):
        bodies.append(body)
        posted.set()

    posts = StatusPosts(post, interval_seconds=600)
    posts.add(end(1))
    assert posted.wait(120)
    for epoch in range(2, 11):
        posts.add(end(epoch))
    posts.finish()
    assert percentages(bodies) == [10, 100]


def test_nothing_is_posted_twice():
    bodies = []
    posts = StatusPosts(bodies.append, interval_seconds=0.01)
    posts.add(end(1))
    posts.finish(60)
    assert percentages(bodies) == [10]
    assert not any(thread.name == "status server" for thread in threading.enumerate())


def test_epochs_beside_steps_are_not_posted():
    bodies = []
    posts = StatusPosts(bodies.append, interval_seconds=600)
    posts.add(TimedProgress(Progress(30, 100, unit="step"), 1795442712.0))
    posts.add(end(9))
    posts.finish(60)
    assert percentages(bodies) == [30]


def test_a_request_that_fails_is_sent_again_and_logged_once(capfd):
    bodies, succeeded = [], threading.Event()

    def post(body):
        bodies.append(body)
        if len(bodies) < 4:
            raise OSError("500 Internal Server Error: no")
        succeeded.set()

    posts = StatusPosts(post, interval_seconds=0.01)
    posts.add(end(1))
    assert succeeded.wait(120)
    posts.finish()
    assert percentages(bodies) == [10] * 4
    text = "cannot post the progress to the status server of Kubeflow Trainer, retrying"
    assert capfd.readouterr().out == f"warning: {text}: OSError: 500 Internal Server Error: no\n"


TRAINING = """\
import sys
from pathlib import Path
from kfp_distributed.trainers.sync import record_epoch
for epoch in range(1, 4):
    record_epoch(Path("training.json"), "worker-0", epoch, 3, {"loss": 1 / epoch})
"""


PATIENT = """
from kfp_distributed.trainers.runtime.monitoring import status_server
status_server._TIMEOUT_SECONDS, status_server.StatusPosts.finish.__defaults__ = 60, (60,)
"""


def train(environment, cwd, program=TRAINING, *, is_patient=True):
    """Run a process, which records three epochs unless it is another program; return its output."""
    command = [sys.executable, "-c", PATIENT * is_patient + program]
    return subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, check=True, timeout=300
    ).stdout


EPOCHS = "epoch 1/3 loss=1.0000\nepoch 2/3 loss=0.5000\nepoch 3/3 loss=0.3333\n"


def test_a_process_that_ends_has_posted_its_last_epoch(server, environment, tmp_path):
    output = train(environment | {REPORTER_VARIABLE: "1"}, tmp_path)
    assert output == EPOCHS
    status = server.requests[-1][2]["trainerStatus"]
    assert (status["progressPercentage"], status["estimatedRemainingSeconds"]) == (100, 0)
    assert status["metrics"] == [{"name": "loss", "value": "0.333333"}]
    assert len(server.requests) <= 2


@pytest.mark.parametrize("missing", [REPORTER_VARIABLE, URL_VARIABLE, CA_VARIABLE, TOKEN_VARIABLE])
def test_without_a_variable_nothing_is_posted_or_said(server, environment, tmp_path, missing):
    variables = environment | {REPORTER_VARIABLE: "1"}
    del variables[missing]
    output = train(variables, tmp_path)
    assert output == EPOCHS
    assert server.requests == []


def test_a_server_that_never_answers_delays_the_end_by_its_timeout_alone(environment, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}{PATH}"
        output = train(environment | {REPORTER_VARIABLE: "1", URL_VARIABLE: url}, tmp_path, is_patient=False)
        # The training has ended though a request was begun that is never answered.
        silent.setblocking(False)
        silent.accept()[0].close()
    assert output.startswith(EPOCHS[: EPOCHS.index("\n") + 1])
    assert [line for line in output.splitlines() if line.startswith("epoch ")] == EPOCHS.splitlines()


def test_a_token_that_is_missing_is_one_warning(environment, tmp_path):
    (tmp_path / "token").unlink()
    output = train(environment | {REPORTER_VARIABLE: "1"}, tmp_path)
    assert len(re.findall("^warning: cannot post the progress .*: FileNotFoundError: ", output, re.MULTILINE)) == 1


FORKED = """
import os, sys
from pathlib import Path
from kfp_distributed.trainers.runtime.monitoring import status_server
from kfp_distributed.trainers.sync import record_step
record_step(Path("training.json"), 0, 4, {"loss": 1.0})
status_server._posts(os.getpid())._changed.acquire()  # As the thread that posts may have it when the program forks.
if (child := os.fork()) == 0:
    record_step(Path("training.json"), 3, 4, {"loss": 0.5})
    sys.exit()
os.waitpid(child, 0)
os._exit(0)
"""


def test_a_fork_that_trains_posts_its_progress(server, environment, tmp_path):
    output = train(environment | {REPORTER_VARIABLE: "1"}, tmp_path, FORKED)
    metrics = [body["trainerStatus"]["metrics"] for _, _, body in server.requests]
    assert [{"name": "loss", "value": "0.5"}] in metrics, output


DURING_A_REQUEST = """
import os, signal, threading, time
from kfp_distributed.trainers.runtime.monitoring import status_server
from kfp_distributed.trainers.runtime.monitoring.progress import Progress
from kfp_distributed.trainers.runtime.monitoring.trainer_status import TimedProgress
status_server._TIMEOUT_SECONDS = SECONDS
begun, goes_on, posted = threading.Event(), threading.Event(), []
def post(body):
    begun.set()
    assert goes_on.wait(60)
    posted.append(body)
posts = status_server.StatusPosts(post, 0.01)
posts.add(TimedProgress(Progress(1, 2), 1.0))
assert begun.wait(60)
HANDLER
if (child := os.fork()) == 0:
    posts = status_server.StatusPosts(posted.append, 0.01)
    posts.add(TimedProgress(Progress(2, 2), 2.0))
    posts.finish(60)
    os._exit(len(posted))
assert not goes_on.is_set() and not posted
assert os.waitpid(child, 0)[1] == 256
goes_on.set()
posts.finish(60)
posts = status_server.StatusPosts(posted.append, 0.01)
posts.add(TimedProgress(Progress(2, 2), 2.0))
posts.finish(60)
if (child := os.fork()) == 0:
    os._exit(0)
os.waitpid(child, 0)
assert posts._thread and not posts._thread.is_alive()
print(len(posted), flush=True)
os._exit(0)
"""

RAISING = """
def handler(*_):
    raise InterruptedError
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.3)
"""


@pytest.mark.parametrize(("seconds", "handler"), [(0.1, ""), (60, RAISING)])
def test_a_fork_during_a_request_that_does_not_end_goes_on_and_so_does_the_request(tmp_path, seconds, handler):
    variables = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    program = DURING_A_REQUEST.replace("SECONDS = SECONDS", f"SECONDS = {seconds}").replace("HANDLER", handler)
    assert train(variables, tmp_path, program, is_patient=False) == "2\n"


NESTED = """
import os, signal
is_first = [True]
os.register_at_fork(before=lambda: is_first and (is_first.clear() or signal.raise_signal(signal.SIGUSR1)))
from kfp_distributed.trainers.runtime.monitoring import status_server  # Its hook runs before the other one.
def fork(*_):
    if (child := os.fork()) == 0:
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
signal.signal(signal.SIGUSR1, fork)
fork()
"""


def test_a_signal_handler_that_interrupts_a_fork_may_fork(tmp_path):
    variables = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    assert train(variables, tmp_path, NESTED, is_patient=False) == "0\n0\n"


def record(model_dir, metrics_dir):
    import os
    from pathlib import Path

    from kfp_distributed.trainers.sync import record_epoch

    replica = os.environ["KFP_DISTRIBUTED_REPLICA"]
    record_epoch(Path(metrics_dir, "training.json"), replica, 1, 1, {replica: 1.0})
    Path(model_dir, "weights").write_text("1")


RECORD = """\
import os
from pathlib import Path
from kfp_distributed.trainers.sync import record_epoch
replica = os.environ["KFP_DISTRIBUTED_REPLICA"]
record_epoch(Path(os.environ["KFP_DISTRIBUTED_METRICS_DIR"], "training.json"), replica, 1, 1, {replica: 1.0})
Path(os.environ["KFP_DISTRIBUTED_MODEL_DIR"], "weights").write_text("1")
"""


@pytest.mark.parametrize(
    "program",
    [train_specification(record), {"command": [sys.executable, "-c", RECORD]}],
    ids=["function", "command"],
)
def test_only_the_leader_of_a_job_posts(make_replicas, digits, server, environment, program):
    replicas = make_replicas(program, {}, {"worker": 2}, digits, environment=environment)
    replicas.start_all()
    assert [replicas.wait(name) for name in replicas.names()] == [0, 0], replicas.text("worker-0")
    metrics = [request[2]["trainerStatus"]["metrics"] for request in server.requests]
    assert metrics == [[{"name": "worker-0", "value": "1"}]], replicas.text("worker-0")
