"""A fake API server with a KServe: it makes a pod for each spec of an InferenceService, and writes its status."""

import copy
import re

import yaml
from kubernetes_api import KubernetesApi

LABEL = "kfp-distributed/deployment"


class KServeApi(KubernetesApi):
    """Serves InferenceServices in Standard mode.

    Attributes:
        bucket: Folder of the bucket that has the models. A folder without a version cannot be fetched.
        outcomes: What becomes of the pods that serve a version: "ready" (the default), "initializer" (the model cannot
            be fetched), "crash" or "pending".
        mode: Deployment mode. None means Knative, which KServe does not write to the annotation.
    """

    def __init__(self, bucket):
        super().__init__()
        self.bucket = bucket
        self.served = {"serving.kserve.io/v1beta1": ["inferenceservices"]}
        self.outcomes = {}
        self.mode = "Standard"

    def write_configuration(self, file):
        """Write a KUBECONFIG for this server; return its path."""
        context = {"cluster": "c", "user": "u", "namespace": "default"}
        configuration = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": context}],
            "current-context": "x",
        }
        file.write_text(yaml.safe_dump(configuration))
        return str(file)

    def execute(self, request, query, body):
        verb, _, key = request.partition(" ")
        if verb in ("TRY", "POST") and key.startswith("inferenceservices/"):
            body = self._with_defaults(body)
        return super().execute(request, query, body)

    def discover(self, path):
        if path == "/apis/serving.kserve.io/v1beta1" and not self.served:
            return 404, {"message": "not found"}
        return super().discover(path)

    def _with_defaults(self, body):
        body = copy.deepcopy(body)
        if self.mode:
            body["metadata"].setdefault("annotations", {})["serving.kserve.io/deploymentMode"] = self.mode
        return body

    def put(self, key, content):
        if not key.startswith("inferenceservices/"):
            return super().put(key, content)
        with self._changed:
            old = self.objects.get(key)
            is_new = old is None or old["spec"] != content["spec"]
            generation = (old["metadata"]["generation"] if old else 0) + is_new
            content = {**copy.deepcopy(content), "metadata": {**content["metadata"], "generation": generation}}
            if old and "status" in old:
                content.setdefault("status", old["status"])
            stored = super().put(key, content)
            answer = copy.deepcopy(stored)
            if is_new:
                self.react(stored)
            return answer

    def react(self, service):
        """Make the pod of a spec, and set the status."""
        name, predictor = service["metadata"]["name"], service["spec"]["predictor"]
        version = self.version_at(predictor["model"]["storageUri"])
        outcome = self.outcomes.get(version, "ready") if version else "initializer"
        pod = f"pods/{name}-predictor-{predictor['labels'][LABEL]}"
        super().put(pod, self.pod(pod.partition("/")[2], name, predictor, outcome))
        if outcome == "ready":
            for other in [key for key in self.objects if key.startswith(f"pods/{name}-predictor-") and key != pod]:
                self.delete(other)
        self.set_status(name, outcome)

    def version_at(self, uri):
        """Return the number of the version that TensorFlow Serving would serve from an address; 0 for none."""
        assert uri.endswith("/")
        files = (self.bucket / re.sub("^s3://[^/]+/", "", uri)).glob("*/saved_model.pb")
        return max((int(file.parent.name) for file in files), default=0)

    def set_status(self, name, outcome):
        key, is_ready = f"inferenceservices/{name}", outcome == "ready"
        status = {
            "address": {"url": f"http://{name}-predictor.default.svc.cluster.local"},
            "conditions": [
                {"type": "Ready", "status": "True" if is_ready else "Unknown", "reason": "ReplicaSetUpdated"}
            ],
            "modelStatus": {"states": {"targetModelState": "Loaded" if is_ready else "FailedToLoad"}},
        }
        if not self.mode:
            revision = self.objects[key]["spec"]["predictor"]["labels"][LABEL]
            revisions = {"latestReadyRevision": revision, "latestCreatedRevision": revision}
            status["components"] = {"predictor": revisions}
        if outcome == "invalid":
            status["modelStatus"] = {
                "transitionStatus": "InvalidSpec",
                "lastFailureInfo": {"reason": "NoSupportingRuntime", "message": "No runtime found"},
            }
        super().put(key, {**self.objects[key], "status": status})

    @staticmethod
    def pod(name, service, predictor, outcome):
        labels = {"serving.kserve.io/inferenceservice": service, **predictor["labels"]}
        labels["serving.knative.dev/revision"] = labels[LABEL]
        ended = {"exitCode": 1, "reason": "Error", "message": "RuntimeError: Unable to locate credentials"}
        server = {"name": "kserve-container", "state": {"running": {}}, "restartCount": 0, "ready": outcome == "ready"}
        initializer = {"name": "storage-initializer", "state": {"terminated": {"exitCode": 0}}, "restartCount": 0}
        if outcome == "initializer":
            waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
            initializer = {**initializer, "state": waiting, "lastState": {"terminated": ended}, "restartCount": 1}
            server["state"] = {"waiting": {"reason": "PodInitializing"}}
        if outcome == "crash":
            waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
            ended = {"exitCode": 3, "reason": "Error"}
            server = {**server, "state": waiting, "lastState": {"terminated": ended}, "restartCount": 1}
        conditions = [{"type": "Ready", "status": "True" if outcome == "ready" else "False"}]
        status = {"conditions": conditions, "initContainerStatuses": [initializer], "containerStatuses": [server]}
        return {"metadata": {"name": name, "labels": labels}, "spec": {"nodeName": "node-1"}, "status": status}
