"""The log of a real container, which the kubelet rotates when it has 10 MiB (the default of `containerLogMaxSize`)."""

import threading
import time
from collections import Counter
from contextlib import suppress

import pytest

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components.train.run.runners.kubernetes.logs.pod_log import LogReader

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.takes(70)]

COUNT, EACH = 36_000, 3000

# 36 MB in 36 s or more. The kubelet looks at the size every 10 s, and serves the newest file alone. Twice as fast, a
# reader on a busy machine once missed the last lines of a file. stdout and stderr alternate. Each 3,000th line has more
# than 16 KiB, so it has two parts in the file. No line of the other stream is printed within a second of it, because it
# could come between the parts: 50 ms were too few on a busy machine.
PROGRAM = f"""\
import os, time
for number in range({COUNT}):
    line = f"{{number}} " + ("x" * 20_000 if number % {EACH} == 50 else "y" * 900) + "\\n"
    os.write(1 + number // 100 % 2, line.encode())
    if number % 100 == 99:
        time.sleep(1 if number % {EACH} in (99, {EACH - 1}) else 0.1)"""


@pytest.fixture
def pod(api, namespace, trainer_image):
    container = {"name": "training", "image": trainer_image, "command": ["python3", "-c", PROGRAM]}
    spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    api.create_namespaced_pod(namespace, {"metadata": {"name": "prints"}, "spec": spec})
    while api.read_namespaced_pod("prints", namespace).status.phase == "Pending":
        time.sleep(0.2)
    return "prints"


def first_number(cluster, path):
    """Return the number of the first line of the newest file; -1 if it is empty or does not exist."""
    with suppress(ClusterError, ValueError):
        text = b"".join(cluster.stream(f"{path}/log", {"limitBytes": "20"}, 30))
        return int(text.split()[0]) if text else -1
    return -1


def test_a_log_that_is_rotated_is_read_once(api, namespace, pod):
    """The connection breaks as soon as a new file is seen, and its first lines were read."""
    cluster, path, rotated = connect(namespace), f"/api/v1/namespaces/{namespace}/pods/{pod}", []
    breaks, ended = threading.Event(), threading.Event()

    def watch_rotations():
        first = 0
        while not ended.is_set():
            number = first_number(cluster, path)
            if number > first:
                first = number
                rotated.append(number)
                breaks.set()
            time.sleep(0.05)

    watching = threading.Thread(target=watch_rotations)
    watching.start()
    reader, lines, is_over = LogReader(), [], False
    try:
        while not is_over:
            is_over = api.read_namespaced_pod(pod, namespace).status.phase != "Running"
            query = {"follow": "true", "timestamps": "true", **reader.resume_query()}
            for data in cluster.stream(f"{path}/log", query, 60):
                lines += [line.text for line in reader.feed(data, -1.0)]
                if breaks.is_set() and int(lines[-1].split()[0]) > rotated[-1]:
                    breaks.clear()
                    is_over = False
                    break
    finally:
        ended.set()
        watching.join()
    assert rotated
    texts = [line.partition(" ") for line in lines]
    numbers = [int(number) for number, _, _ in texts]
    for stream in (0, 1):
        printed = [number for number in range(COUNT) if number // 100 % 2 == stream]
        assert [number for number in numbers if number // 100 % 2 == stream] == printed
    assert Counter(len(text) for _, _, text in texts) == {900: COUNT - COUNT // EACH, 20_000: COUNT // EACH}
