"""TrainJobs of each type run on a real cluster with Kubeflow Trainer, in a namespace with the standard "restricted"."""

import re
import threading
import time
import uuid

import pytest
from cluster.test_launch import ALONE, function
from kubernetes import client
from train.programs.jobs import wait_until

from kfp_distributed.components.train.describe.manifests import JOB_LABEL, code_config_map, object_store_secret
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.job_objects import settings_for
from kfp_distributed.components.train.describe.manifests.train_job import (
    TRAIN_JOB,
    TRAINING_RUNTIME,
    owned_by_train_job,
    train_job_manifest,
    training_runtime_manifest,
)
from kfp_distributed.components.train.describe.manifests.train_job_names import train_job_names
from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.library.content import REPLICA_PACKAGES, read_library

pytestmark = [pytest.mark.cluster, pytest.mark.trainer, pytest.mark.timeout(600), pytest.mark.takes(60)]


def _custom(kind):
    return (kind.group, kind.version)


class _Run:
    """One TrainJob: its objects in the cluster, and the lines of its pods by the name of the pod."""

    def __init__(self, job, settings):
        self.job, self.namespace = job, settings.namespace
        self.core, self.custom = client.CoreV1Api(), client.CustomObjectsApi()
        self.lines, self.begun = {}, time.monotonic()
        self._create(settings)

    def _create(self, settings):
        runtime = (*_custom(TRAINING_RUNTIME), self.namespace, TRAINING_RUNTIME.plural)
        self.custom.create_namespaced_custom_object(*runtime, training_runtime_manifest(self.job, settings))
        created = wait_until(lambda: self._create_train_job(settings))
        assert created, "the webhook does not know the TrainingRuntime"
        patch = owned_by_train_job(created["metadata"]["uid"], self.job)
        self.custom.patch_namespaced_custom_object(*runtime, self.job.name, patch)
        owner = patch["metadata"]["ownerReferences"]
        for manifest, create in (
            (code_config_map(self.job, settings), self.core.create_namespaced_config_map),
            (object_store_secret(self.job, settings), self.core.create_namespaced_secret),
        ):
            create(self.namespace, {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": owner}})

    def _create_train_job(self, settings):
        try:
            return self.custom.create_namespaced_custom_object(*self._path, train_job_manifest(self.job, settings))
        except client.ApiException as error:
            if "must be created before the TrainJob" not in str(error):
                raise
            return None

    @property
    def _path(self):
        return (*_custom(TRAIN_JOB), self.namespace, TRAIN_JOB.plural)

    def existing(self, paths):
        """Return those of some paths, such as "secrets/NAME", whose objects exist."""
        return [path for path in paths if self.exists(path)]

    def exists(self, path):
        groups = {
            "trainingruntimes": "apis/trainer.kubeflow.org/v1alpha1",
            "jobsets": "apis/jobset.x-k8s.io/v1alpha2",
            "jobs": "apis/batch/v1",
        }
        root = groups.get(path.partition("/")[0], "api/v1")
        try:
            url = f"/{root}/namespaces/{self.namespace}/{path}"
            self.core.api_client.call_api(url, "GET", auth_settings=["BearerToken"], _preload_content=False)
        except client.ApiException as error:
            if error.status != 404:
                raise
            return False
        return True

    @property
    def restarts(self):
        """How often all replicas were restarted, and how many of these restarts count for the limit."""
        path = ("jobset.x-k8s.io", "v1alpha2", self.namespace, "jobsets", self.job.name)
        status = self.custom.get_namespaced_custom_object(*path)["status"]
        return status["restarts"], status.get("restartsCountTowardsMax", 0)

    def delete(self):
        try:
            self.custom.delete_namespaced_custom_object(*self._path, self.job.name)
        except client.ApiException as error:
            if error.status != 404:
                raise

    def pods(self):
        return self.core.list_namespaced_pod(self.namespace, label_selector=f"{JOB_LABEL}={self.job.name}").items

    def status(self):
        return self.custom.get_namespaced_custom_object(*self._path, self.job.name).get("status", {})

    def condition(self):
        """Follow the logs of new pods; return the type and reason of the final condition, if there is one."""
        for pod in self.pods():
            if pod.status.phase != "Pending" and pod.metadata.name not in self.lines:
                self.lines[pod.metadata.name] = []
                threading.Thread(target=self._follow, args=(pod.metadata.name,), daemon=True).start()
        for condition in self.status().get("conditions", ()):
            if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
                return condition["type"], condition["reason"]
        return None

    def _follow(self, name):
        log = self.core.read_namespaced_pod_log(
            name, self.namespace, container="node", follow=True, _preload_content=False
        )
        for line in log:
            self.lines[name].append(line.decode().rstrip("\n"))

    def log_of(self, replica):
        """Return all lines of a replica, of all of its pods."""
        host = train_job_names(self.job).replicas[replica].host
        return [line for name, lines in self.lines.items() if name.rpartition("-")[0] == host for line in lines]

    def show(self):
        """Return the log of all pods, for a failed assertion."""
        return "\n".join(f"[{name}] {line}" for name, lines in self.lines.items() for line in lines)


@pytest.fixture
def start(training_namespace, bucket, store_environment):
    """A function that creates a TrainJob, which is deleted at the end of the test."""
    runs = []

    def start_one(program, distribution, parameters):
        number = uuid.uuid4().hex[:8]
        request = Request(
            train_uri=f"s3://{bucket}/train_dataset",
            validation_uri=f"s3://{bucket}/validation_dataset",
            model_uri=f"s3://{bucket}/models/{number}/model",
            train_specification=program,
            train_parameters=parameters,
            distribution_specification={"launcher_lost_timeout": "unlimited", **distribution},
            identity=(f"run-{number}", "train"),
        )
        job = plan_job(request)
        settings = ClusterSettings(
            training_namespace,
            environment=({"name": "AWS_ENDPOINT_URL", "value": store_environment["AWS_ENDPOINT_URL"]},),
            object_store={name: store_environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")},
            library=read_library(REPLICA_PACKAGES),
        )
        runs.append(_Run(job, settings_for(job, settings, None, {})))
        return runs[-1]

    with pytest.MonkeyPatch.context() as patch:
        for name, value in store_environment.items():
            patch.setenv(name, value)
        yield start_one
    for run in runs:
        run.delete()


SUCCESS = ("Complete", "AllJobsCompleted")


def condition_of(run, seconds=300):
    condition = wait_until(run.condition, seconds)
    assert condition, f"not finished after {seconds} s\n{run.show()}"
    print(f"{run.job.name}: {condition} after {time.monotonic() - run.begun:.1f} s\n{run.show()}")
    return condition


def ranks_of(run):
    """Return the ranks that each replica printed."""
    names = train_job_names(run.job).replicas
    return {name: sorted(re.findall(r"\brank (\d of \d)", "\n".join(run.log_of(name)))) for name in names}


PRINTS_RANK = """\
import os
for library in ("", "OMPI_COMM_WORLD_"):
    if rank := os.environ.get(f"{library}RANK"):
        print("rank", rank, "of", os.environ.get(f"{library}SIZE") or os.environ["WORLD_SIZE"], flush=True)"""


# Otherwise the leader may have saved its model before the other replica has started.
AWAITS_ALL = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()"""


@pytest.mark.parametrize("keys", [{}, {"worker_memory": "1500Mi"}], ids=["one template", "two templates"])
def test_each_slot_of_a_pytorch_job_is_a_rank(start, image_name, keys):
    distribution = {"distribution_type": "PyTorch", "number_of_workers": 1, "slots_per_worker": 2, **keys}
    run = start({**function(PRINTS_RANK), "image": image_name("pytorch")}, distribution, {})
    assert condition_of(run) == SUCCESS, run.show()
    assert ranks_of(run) == {"master-0": ["0 of 4", "1 of 4"], "worker-0": ["2 of 4", "3 of 4"]}, run.show()


def test_a_replica_with_one_slot_is_a_rank_itself(start, image_name):
    distribution = {"distribution_type": "PyTorch", "number_of_workers": 1}
    run = start({**function(PRINTS_RANK + AWAITS_ALL), "image": image_name("pytorch")}, distribution, {})
    assert condition_of(run) == SUCCESS, run.show()
    assert ranks_of(run) == {"master-0": ["0 of 2"], "worker-0": ["1 of 2"]}, run.show()


def test_the_chief_decides_about_the_success_of_a_tf_job(start, image_name):
    """The chief reaches the servers by the addresses in TF_CONFIG, and they serve until it has ended."""
    body = """\
import json, os, socket, time
cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
for role in ("ps", "worker"):
    for address in cluster[role]:
        host, port = address.split(":")
        while True:
            try:
                socket.create_connection((host, int(port)), 1).close()
                break
            except OSError:
                time.sleep(0.5)
        print("reached", role, address, flush=True)"""
    program = {**function(body), "image": image_name("tensorflow")}
    distribution = {"distribution_type": "TF", "number_of_workers": 1, "number_of_parameter_servers": 1}
    run = start(program, distribution, {})
    assert condition_of(run) == SUCCESS, run.show()
    reached = [line for line in run.log_of("chief-0") if line.startswith("reached ")]
    addresses = {name: names.address for name, names in train_job_names(run.job).replicas.items()}
    assert reached == [f"reached {name[:-2]} {addresses[name]}:2222" for name in ("ps-0", "worker-0")], run.show()


def test_workers_of_a_tf_job_train_one_model(start, image_name):
    """Kubeflow Trainer has a status server where its feature TrainJobStatus is on, which is off by default."""
    distribution = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0}
    program = {"trainer": "keras_classifier", "image": image_name("tensorflow")}
    run = start(program, distribution, {"epochs": 2, "batch_size": 130})
    assert wait_until(run.pods, 60)
    names = {entry.name for pod in run.pods() for entry in pod.spec.containers[0].env}
    assert condition_of(run) == SUCCESS, run.show()
    assert any("epoch 2/2" in line for line in run.log_of("worker-0")), run.show()
    assert "warning: cannot post the progress" not in run.show()
    if "KUBEFLOW_TRAINER_SERVER_URL" in names:
        status = run.status()["trainerStatus"]
        assert (status["progressPercentage"], status["estimatedRemainingSeconds"]) == (100, 0), run.show()
        assert [metric["name"] for metric in status["metrics"]][:2] == ["loss", "accuracy"]


def test_worker_0_alone_decides_about_success(start, image_name):
    body = "import json, os, time\ntime.sleep(600 * json.loads(os.environ['TF_CONFIG'])['task']['index'])"
    program = {**function(body), "image": image_name("tensorflow")}
    distribution = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0}
    run = start(program, distribution, {})
    assert condition_of(run) == SUCCESS, run.show()


def test_mpi_ranks_run_without_root(start, image_name):
    distribution = {"distribution_type": "MPI", "number_of_workers": 2, "slots_per_worker": 2, "launcher_cpus": "500m"}
    run = start({**function(PRINTS_RANK), "image": image_name("horovod")}, distribution, {})
    assert condition_of(run) == SUCCESS, run.show()
    printed = "\n".join(run.log_of("launcher-0"))
    assert set(re.findall(r"rank (\d) of 4", printed)) == {"0", "1", "2", "3"}, run.show()
    assert "host key" not in "\n".join(run.log_of("worker-0"))


def test_jobset_ends_a_job_without_its_step_after_its_own_limit_of_restarts(start, image_name):
    """It restarts once more than restart_limit. A step ends the job at the exact limit."""
    program = {**function("import os; os._exit(201)"), "image": image_name("tensorflow")}
    run = start(program, {**ALONE, "restart_limit": 1}, {})
    assert condition_of(run) == ("Failed", "ReachedMaxRestarts"), run.show()
    assert run.restarts == (2, 2)


def test_all_objects_of_a_job_are_deleted_with_it(start, image_name):
    distribution = {"distribution_type": "MPI", "number_of_workers": 1}
    run = start({**function("import time\ntime.sleep(600)"), "image": image_name("horovod")}, distribution, {})
    names = train_job_names(run.job)
    paths = [
        *(f"{path}/{names.train_job}" for path in ("trainingruntimes", "jobsets", "services")),
        *(f"jobs/{name}" for name in names.jobs),
        *(f"configmaps/{name}" for name in (names.snapshot, names.mpi_hosts, f"{run.job.name}-code")),
        *(f"secrets/{name}" for name in (names.mpi_keys, f"{run.job.name}-object-store")),
    ]
    assert wait_until(lambda: run.existing(paths) == paths, 60), run.existing(paths)
    run.delete()
    assert wait_until(lambda: run.existing(paths) == [], 60), run.existing(paths)
