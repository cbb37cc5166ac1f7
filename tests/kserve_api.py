"""A fake API server with a KServe: it makes a pod for each spec of an InferenceService, and writes its status."""

import copy
import json

from kubernetes_api import KubernetesApi

LABEL = "kfp-distributed/deployment"


class KServeApi(KubernetesApi):
    """Serves InferenceServices in Standard mode.

    Attributes:
        outcomes: What becomes of the pods that serve an address: "ready" (the default), "initializer" (the model cannot
            be fetched), "crash" or "pending". Addresses end with a slash.
        mode: Deployment mode. None means Knative, which KServe does not write to the annotation.
    """

    def __init__(self):
        super().__init__()
        self.served = {"serving.kserve.io/v1beta1": ["inferenceservices"]}
        self.outcomes = {}
        self.mode = "Standard"
        self.unknown_fields = ()

    def execute(self, request, query, body):
        verb, _, key = request.partition(" ")
        if verb in ("TRY", "POST") and key.startswith("inferenceservices/"):
            if any(field in json.dumps(body) for field in self.unknown_fields):
                return 400, {
                    "message": f'strict decoding error: unknown field "spec.predictor.{self.unknown_fields[0]}"'
                }
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
        uri = predictor["storageUris"][0]["uri"]
        outcome = self.outcomes.get(uri, "ready")
        pod = f"pods/{name}-predictor-{predictor['labels'][LABEL][:8]}"
        super().put(pod, self.pod(pod.partition("/")[2], name, predictor, outcome))
        if outcome == "ready":
            for other in [key for key in self.objects if key.startswith(f"pods/{name}-predictor-") and key != pod]:
                self.delete(other)
        self.set_status(name, outcome)

    def set_status(self, name, outcome):
        key, is_ready = f"inferenceservices/{name}", outcome == "ready"
        status = {
            "address": {"url": f"http://{name}-predictor.default.svc.cluster.local"},
            "conditions": [
                {"type": "Ready", "status": "True" if is_ready else "Unknown", "reason": "ReplicaSetUpdated"}
            ],
            "modelStatus": {"states": {"targetModelState": "Loaded" if is_ready else "FailedToLoad"}},
        }
        if outcome == "invalid":
            status["modelStatus"] = {
                "transitionStatus": "InvalidSpec",
                "lastFailureInfo": {"reason": "NoSupportingRuntime", "message": "No runtime found"},
            }
        super().put(key, {**self.objects[key], "status": status})

    @staticmethod
    def pod(name, service, predictor, outcome):
        labels = {"serving.kserve.io/inferenceservice": service, **predictor["labels"]}
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
