"""Names and formats of the Kubeflow Pipelines backend that this library relies on. Pure.

Compared with the sources of the KFP backends 2.15.0, 2.16.1, 2.17.0 and of the master branch of 2026-08-21
(kubeflow/pipelines, commit 7b70c7b95f). `RELIANCES` describes each for docs/reference/kfp-backend.md and names its
test.
"""

import re
from typing import NamedTuple

RUN_ID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}")
"""Form of a run's ID and of the ID that the driver adds to the folder of each task: a UUID in lower case."""

OUTPUT_FORMS = "PIPELINE/RUN/TASK/UUID/OUTPUT or PIPELINE/RUN/TASK/OUTPUT"
"""Keys of output artifacts below the pipeline root, since KFP 2.4 and before."""

DEFAULT_PIPELINE_ROOT = "minio://mlpipeline/v2/artifacts"
"""Pipeline root if the ConfigMap `kfp-launcher` does not set another."""

POD_NAME_VARIABLE = "KFP_POD_NAME"
"""Environment variable of a step with the name of its pod."""

POD_UID_VARIABLE = "KFP_POD_UID"
"""Environment variable of a step with the UID of its pod."""

NODE_NAME_ANNOTATION = "workflows.argoproj.io/node-name"
"""Annotation of a step's pod with the name of its node in the Workflow. Argo Workflows sets it."""

NODE_NAME = re.compile(r"[^.]+\.root\.(.+\.)?[^.]+\.executor")
"""Form of a step's node name without the numbers of attempts: WORKFLOW.root.TASK.executor, with more before TASK."""

ITERATION = re.compile(r"\((\d+):.*\)$")
"""Index and value of an iteration of a ParallelFor at the end of a node's name, such as "iteration-iterations(1:1)"."""

CONTROL_NODE = re.compile(r"root|iteration|iteration-item|(for-loop|condition|condition-branches|exit-handler)-\d+")
"""Names of the nodes that KFP creates for control flow. The other nodes above a task are sub-pipelines."""

RUN_ID_LABEL = "pipeline/runid"
"""Label of a step's pod with the ID of the run."""

KFP_NAMESPACE = "kubeflow"
"""Namespace of an installation, and of its object store."""

STEP_ACCOUNT = "pipeline-runner"
"""Service account of the steps of an installation for one user. Profiles of a multi-user installation have another."""

LAUNCHER_CONFIG_MAP = "kfp-launcher"
"""ConfigMap in the namespace of the steps with the pipeline root and the object stores."""

PIPELINE_ROOT_KEY = "defaultPipelineRoot"
"""Key of that ConfigMap with the pipeline root."""

PROVIDERS_KEY = "providers"
"""Key of that ConfigMap with the object stores by scheme, as YAML."""

STORE_SECRET = "mlpipeline-minio-artifact"
"""Secret in the namespace of the steps with the keys of the default object store."""

ACCESS_KEY_FIELD, SECRET_KEY_FIELD = "accesskey", "secretkey"
"""Fields of that Secret."""

STORE_SERVICES = ("seaweedfs", "minio-service")
"""Services of the default object store, newest first. KFP 2.15 has both. Since 2.16 it only has the first."""

STORE_PORT = 9000
"""Port of the default object store. The Service `seaweedfs` of KFP 2.15 does not have it, only `minio-service` does."""

UI_ARTIFACT = "artifacts/{scheme}/{bucket}/{key}?namespace={namespace}"
"""Address of an object of the default object store in the KFP UI. The first three values are URL-encoded."""

UI_NAMESPACE_PREFIX = "private-artifacts"
"""First folder in the bucket of a multi-user installation, before that of the namespace.

Since KFP 2.17, its UI serves an object that is not in ML Metadata, such as the report of a failed step, only if its key
begins with these two folders.
"""

TASK_CONFIG_FIELDS = ("affinity", "tolerations", "node_selector", "env", "volumes", "volume_mounts", "resources")
"""Fields of `kfp.dsl.TaskConfig`, which the driver fills in as in the spec of a pod."""

RUNTIME_VARIABLE = "_KFP_RUNTIME"
"""Environment variable that makes kfp import its runtime only, without its compiler, if it is "true"."""

EXECUTOR_MODULE = "kfp.dsl.executor_main"
"""Module of kfp that calls the function of a step with its artifacts."""


class Reliance(NamedTuple):
    """A property of KFP that this library relies on.

    Attributes:
        value: Name or format, as KFP has it.
        since: First KFP version that has it in this form; "2.0" if every version 2 has it.
        source: File of kubeflow/pipelines that shows it.
        use: What this library does with it.
        missing: What happens if it is missing or has another form.
        test: Name of the test that shows it.
    """

    value: str
    since: str
    source: str
    use: str
    missing: str
    test: str


_V2 = "backend/src/v2"

RELIANCES = (
    Reliance(
        "output URI `ROOT/PIPELINE/RUN/TASK/UUID/OUTPUT`",
        "2.4",
        f"{_V2}/driver/driver.go, {_V2}/metadata/client.go",
        "`train` names its job, checkpoints and heartbeat by it; `export_model` records the run",
        "Without UUID, `train` adds the node name. Without RUN, it warns, and takes the run and the task from "
        f"`{RUN_ID_LABEL}` and the node name of its pod. Such a training is not listed by `jobs --ended`. "
        "`export_model` refuses the URI before it writes",
        "test_without_a_run_id_is_replaced_by_the_pod",
    ),
    Reliance(
        f"pipeline root `{DEFAULT_PIPELINE_ROOT}`",
        "2.0",
        f"{_V2}/config/env.go",
        "The command line looks for ended jobs there. `export_model` without `bucket` stores models beside it",
        "Pass `--bucket`. Models are in the folder `models` of the root",
        "test_default_address_is_the_pipeline_root",
    ),
    Reliance(
        f"variable `{POD_NAME_VARIABLE}`",
        "2.0",
        f"{_V2}/compiler/argocompiler/common.go",
        "`train` reads its own pod and makes it the owner of the job",
        "`train` warns and continues: nothing deletes the job with the pod, and the job's name has no sub-pipelines "
        "and iterations",
        "test_missing_variables_of_the_pod_are_logged",
    ),
    Reliance(
        f"variable `{POD_UID_VARIABLE}`",
        "2.0",
        f"{_V2}/compiler/argocompiler/common.go",
        "`train` makes its pod the owner of the job",
        "`train` warns and continues: nothing deletes the job with the pod",
        "test_missing_variables_of_the_pod_are_logged",
    ),
    Reliance(
        f"annotation `{NODE_NAME_ANNOTATION}`",
        "2.0",
        f"{_V2}/component/launcher_v2.go, {_V2}/compiler/argocompiler/dag.go",
        "`train` shows sub-pipelines and iterations in the name and labels of the job",
        "`train` warns and continues without them. It ends with an error only if the output URI has no UUID, because "
        "trainings would share a job",
        "test_that_is_missing_or_unknown_is_logged",
    ),
    Reliance(
        f"label `{RUN_ID_LABEL}`",
        "2.0",
        "backend/src/common/util/consts.go, backend/src/apiserver/template/v2_template.go",
        "Run ID of a training whose output URI has none",
        "`train` ends with an error that names the URI and the label",
        "test_without_a_run_id_and_without_the_pod_is_an_error",
    ),
    Reliance(
        f"service account `{STEP_ACCOUNT}`",
        "2.0",
        "manifests/kustomize/base/pipeline/pipeline-runner-sa.yaml",
        "`install` and `doctor` use it by default",
        "Pass `--service-account`",
        "test_the_role_of_the_steps_has_the_names_of_the_backend",
    ),
    Reliance(
        f"ConfigMap `{LAUNCHER_CONFIG_MAP}`: `{PIPELINE_ROOT_KEY}`, `{PROVIDERS_KEY}`",
        "2.0",
        f"{_V2}/config/env.go, {_V2}/config/s3.go, {_V2}/config/minio.go",
        "Address and Secret of the object store",
        "A missing ConfigMap means the defaults, as for the launcher. A step refuses an entry that it cannot read",
        "test_invalid_launcher_configuration",
    ),
    Reliance(
        f"Secret `{STORE_SECRET}`: `{ACCESS_KEY_FIELD}`, `{SECRET_KEY_FIELD}`",
        "2.0",
        f"{_V2}/config/env.go",
        "Keys of the default object store, for steps and replicas",
        "The step ends with an error that names the Secret and its fields",
        "test_missing_service_or_secret_is_named",
    ),
    Reliance(
        f"Service `{STORE_SERVICES[0]}` or `{STORE_SERVICES[1]}`, port {STORE_PORT}",
        "2.16 (`seaweedfs`), 2.0 to 2.15 (`minio-service`)",
        f"{_V2}/objectstore/config.go, manifests/kustomize/third-party/seaweedfs",
        "Address of the default object store",
        "The step ends with an error that lists the Services. If it may not read them, it chooses by DNS",
        "test_a_service_without_the_port_of_the_launcher_is_an_error",
    ),
    Reliance(
        f"address `{UI_ARTIFACT}` in the KFP UI",
        "2.0",
        "frontend/server/app.ts, frontend/server/handlers/artifacts.ts",
        "`train` logs the address of the report of a failed training",
        "Use the `aws s3 cp` command of the log. Since 2.17, a multi-user UI answers 403 if the key does not begin "
        f"with `{UI_NAMESPACE_PREFIX}/NAMESPACE/`, because the report is not in ML Metadata. The log says so",
        "test_an_address_that_a_multi_user_ui_refuses_is_marked",
    ),
    Reliance(
        "`TaskConfig`: resources, node selector, tolerations, affinity, variables, volumes",
        "2.15",
        f"{_V2}/driver/driver.go, {_V2}/driver/container.go",
        "`train` applies the settings of its task to the replicas",
        "An older backend refuses a component that was compiled with `task_config`. Compile it without, as by default",
        "test_a_step_that_was_compiled_without_task_config_has_no_settings",
    ),
    Reliance(
        "the launcher downloads input artifacts as a whole",
        "2.0",
        f"{_V2}/component/launcher_v2.go",
        "`evaluate` reads the model from the disk of the step, and so does `export_model` if it gets `model` and the "
        "model is on another server than the bucket. With `model_uri`, the launcher downloads nothing",
        "They end with an error that names the missing file",
        "test_damaged_models_are_refused",
    ),
    Reliance(
        "the launcher downloads an input artifact by the prefix of its key",
        "2.0",
        f"{_V2}/component/launcher_v2.go, {_V2}/objectstore/object_store.go",
        "The key of the shards of a dataset does not begin with that of the artifact, so no step downloads them "
        "without need",
        "Steps that only need `dataset.json` receive the shards, too",
        "test_no_listing_of_an_artifact_finds_shards",
    ),
    Reliance(
        "the launcher uploads no outputs of a failed step",
        "2.0",
        f"{_V2}/component/launcher_v2.go",
        "A failed `train` stores its report itself",
        "The report is stored twice, under the same URI",
        "test_a_failed_step_stores_its_report_and_logs_its_location",
    ),
    Reliance(
        "the cache compares the texts of inputs",
        "2.0",
        f"{_V2}/cacheutils/cache.go, {_V2}/driver/cache.go",
        "`fingerprint_source` makes `prepare_data` run again when the data change",
        "`prepare_data` logs the fingerprint. If outputs are old, call `set_caching_options(False)` on the task",
        "test_the_log_says_what_the_cache_knows_of_the_source",
    ),
    Reliance(
        "placeholders `{{$...}}` as complete values of arguments",
        "2.0",
        f"{_V2}/driver/resolve.go",
        "Pipelines pass the run ID and other properties of the run",
        "A step refuses a parameter that still has a placeholder, and names both",
        "test_placeholder_is_rejected",
    ),
    Reliance(
        f"variable `{RUNTIME_VARIABLE}`, module `{EXECUTOR_MODULE}`",
        "2.0",
        "sdk/python/kfp/__init__.py, sdk/python/kfp/dsl/component_factory.py",
        "Steps start kfp without its dependencies, in the version that compiled them",
        "A property of the SDK, which the compiled YAML pins. A test compiles and starts steps with the oldest and the "
        "newest version",
        "test_oldest_kfp_runs_a_step_on_this_machine",
    ),
)
