"""What the doctor makes of facts about the object store, by whole checks."""

from dataclasses import replace

import pytest
from compiled import SPECS
from kfp import compiler, dsl

from kfp_distributed.cli.cluster_checks.checks import Check, Question, Refusal
from kfp_distributed.cli.cluster_checks.step_buckets import (
    StepBucket,
    bucket_of,
    judge_address,
    judge_models,
    read_step_buckets,
)
from kfp_distributed.cli.cluster_checks.store_checks import BucketAnswer, judge_bucket, judge_store
from kfp_distributed.cli.setup.libraries import read_pipeline
from kfp_distributed.storage.kubeflow.kfp_store import StoreReference

STORE = StoreReference("minio-service.kubeflow:9000", "mlpipeline-minio-artifact", "team")


class TestStore:
    CREATE = (
        "kubectl create secret generic mlpipeline-minio-artifact --namespace team "
        "--from-file accesskey=FILE --from-file secretkey=FILE"
    )

    @pytest.mark.parametrize(
        ("fields", "check"),
        [
            (
                {"accesskey", "secretkey"},
                Check("secret", "ok", "team/mlpipeline-minio-artifact has accesskey and secretkey"),
            ),
            (
                None,
                Check(
                    "secret",
                    "failed",
                    "there is no team/mlpipeline-minio-artifact with the object store's keys",
                    CREATE,
                ),
            ),
            (
                {"accesskey"},
                Check(
                    "secret",
                    "failed",
                    "team/mlpipeline-minio-artifact has no secretkey",
                    f"kubectl delete secret mlpipeline-minio-artifact --namespace team && {CREATE}",
                ),
            ),
            (
                Refusal("forbidden"),
                Check(
                    "secret",
                    "warning",
                    "cannot read team/mlpipeline-minio-artifact: forbidden",
                    "ask somebody who may read it whether it has accesskey and secretkey: "
                    "kubectl describe secret mlpipeline-minio-artifact --namespace team",
                ),
            ),
        ],
    )
    def test_the_secret_of_a_known_store_is_checked(self, fields, check):
        assert judge_store(STORE, fields) == [Check("object store", "ok", "http://minio-service.kubeflow:9000"), check]

    def test_an_unknown_store_fails(self):
        assert judge_store(Refusal("there is no Service"), None) == [
            Check(
                "object store",
                "failed",
                "there is no Service",
                "in the pipeline or here, set AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                "KFP_DISTRIBUTED_OBJECT_STORE_SECRET to a Kubernetes Secret",
            )
        ]


class TestBucket:
    COMMAND = "kfp-distributed doctor --namespace team --bucket 's3://b/a b'"
    HERE = "AWS_ENDPOINT_URL_S3={} " + COMMAND
    UNREACHED = "s3://b/k cannot be reached from this machine: timed out; pods may still reach it"

    def judge(self, store, answer, **question):
        return tuple(judge_bucket(Question("team", "", command=self.COMMAND, **question), "s3://b/k", store, answer))

    def test_a_bucket_that_answers_is_ok(self):
        result = ("bucket", "ok", "s3://b/k can be listed with the keys of the Secret", "")
        assert self.judge(STORE, BucketAnswer(True)) == result
        way = "s3://b/k can be listed with the keys of the Secret, by a port-forward through the API server"
        assert self.judge(STORE, BucketAnswer(True, is_forwarded=True)) == ("bucket", "ok", way, "")

    @pytest.mark.parametrize("store", [STORE, Refusal("there is no Service")])
    def test_a_bucket_that_was_not_asked_is_a_warning(self, store):
        result = "s3://b/k was not checked, because the address or the keys of the store are missing"
        fix = f"fix the problems above, then repeat: {self.COMMAND}"
        assert self.judge(store, None) == ("bucket", "warning", result, fix)

    @pytest.mark.parametrize(
        ("endpoint", "url"),
        [(None, "http://minio-service.kubeflow:9000"), (("store.example.com", True), "https://store.example.com")],
    )
    def test_a_missing_bucket_is_a_failure(self, endpoint, url):
        missing = ("bucket", "failed", "s3://b/k does not exist; steps do not create buckets")
        make = "to create it, with the keys of team/mlpipeline-minio-artifact: {}aws s3 mb s3://b --endpoint-url {}"
        answer = BucketAnswer(True, "NoSuchBucket: no such bucket")
        assert self.judge(STORE, answer, endpoint=endpoint) == (*missing, make.format("", url))
        if not endpoint:
            forward = "kubectl port-forward --namespace kubeflow service/minio-service 9000 & sleep 3; "
            fix = make.format(forward, "http://localhost:9000") + "; kill $!"
            assert self.judge(STORE, answer._replace(is_forwarded=True)) == (*missing, fix)
            # Only root may listen at a port below 1024.
            fix = fix.replace("minio-service 9000", "minio-service 9080:80").replace("localhost:9000", "localhost:9080")
            store = replace(STORE, endpoint="minio-service.kubeflow.svc")
            assert self.judge(store, answer._replace(is_forwarded=True)) == (*missing, fix)

    def test_a_missing_bucket_that_a_step_reads_is_not_to_be_created(self):
        answer = BucketAnswer(True, "NoSuchBucket: no such bucket")
        check = judge_bucket(Question("team", ""), "s3://m/x.csv", STORE, answer, "source of prepare-data")
        fix = "correct the address, or store there what the step reads"
        assert tuple(check) == ("source of prepare-data", "failed", "s3://m/x.csv does not exist", fix)

    def test_the_check_of_a_bucket_that_a_step_names_has_another_name(self):
        check = judge_bucket(Question("team", ""), "s3://m", STORE, BucketAnswer(True), "bucket of export-model")
        assert check == Check("bucket of export-model", "ok", "s3://m can be listed with the keys of the Secret")

    def test_another_name_is_the_advice_for_one_that_the_client_refuses(self):
        error = "this is no valid name of a bucket: 3 to 63 lower-case letters (ValueError: invalid bucket name)"
        assert self.judge(STORE, BucketAnswer(True, error))[-1] == "choose another name"

    def test_wrong_keys_fail(self):
        assert self.judge(STORE, BucketAnswer(True, "the server refuses the account")) == (
            "bucket",
            "failed",
            "s3://b/k: the server refuses the account",
            "correct the Secret, or the permissions of its account",
        )

    def test_an_invalid_bucket_name_fails(self):
        assert self.judge(STORE, BucketAnswer(True, "code: InvalidBucketName"))[1:] == (
            "failed",
            "s3://b/k: code: InvalidBucketName",
            "choose another name",
        )

    @pytest.mark.parametrize("secure", [False, True])
    def test_the_fix_of_an_unreachable_address_asks_for_a_reachable_one(self, secure):
        store = StoreReference("minio-service.kubeflow:9000", "keys", "team", secure=secure)
        fix = f"name an address that this machine reaches: {self.HERE.format('https://HOST:PORT' if secure else 'http://HOST:PORT')}"
        assert self.judge(store, BucketAnswer(False, "timed out")) == ("bucket", "warning", self.UNREACHED, fix)

    def test_the_fix_of_an_unreachable_address_of_the_environment_is_to_correct_it(self):
        here = {"endpoint": ("localhost:1", False), "endpoint_variable": "AWS_ENDPOINT_URL"}
        check = self.judge(STORE, BucketAnswer(False, "timed out"), **here)
        assert check == ("bucket", "warning", self.UNREACHED, "correct or unset AWS_ENDPOINT_URL")


class TestStepBuckets:
    @staticmethod
    @dsl.component(base_image="python:3.11")
    def export(bucket: str, model_uri: str = "s3://zoo/cats/1", note: str = "s3:") -> str:
        return bucket

    @staticmethod
    @dsl.component(base_image="python:3.11")
    def export_beside(bucket: str = "") -> None:
        pass

    def buckets_of(self, pipeline, tmp_path, library="NAME, HASH = 'kfp-distributed-1', '" + 64 * "0" + "'"):
        compiler.Compiler().compile(pipeline, str(tmp_path / "pipeline.yaml"))
        spec = read_pipeline((tmp_path / "pipeline.yaml").read_text())
        for executor in spec["deploymentSpec"]["executors"].values():
            executor["container"]["command"].append(f"\n{library}\n")
        return read_step_buckets(spec)

    def test_what_a_step_of_another_library_means_by_a_bucket_is_not_known(self, tmp_path):
        @dsl.pipeline
        def pipeline():
            self.export(bucket="of-another-cloud")
            self.export_beside()

        addresses = [StepBucket("export", "model_uri", "s3://zoo/cats/1")]
        assert self.buckets_of(pipeline, tmp_path, library="") == addresses

    def test_defaults_and_constants_of_all_levels_are_read(self, tmp_path):
        @dsl.pipeline
        def inner(bucket: str, ready: bool):
            with dsl.If(ready == True):  # noqa: E712
                self.export(bucket=bucket, model_uri="")

        @dsl.pipeline
        def outer(ready: bool, bucket: str = "models/team", source: str = "minio://data/rows.csv", given: str = "./x"):
            inner(bucket=bucket, ready=ready)
            first = self.export(bucket="other", model_uri=source)
            self.export(bucket=first.output)
            self.export(bucket=given)
            self.export_beside()

        assert sorted(self.buckets_of(outer, tmp_path)) == [
            StepBucket("export", "bucket", "s3://models/team"),
            StepBucket("export", "bucket", "s3://other"),
            StepBucket("export", "model_uri", "minio://data/rows.csv"),
            StepBucket("export-2", "model_uri", "s3://zoo/cats/1"),
            StepBucket("export-3", "bucket", "./x"),
            StepBucket("export-beside", "bucket", ""),
        ]

    @staticmethod
    @dsl.component(base_image="python:3.11")
    def prepare(source: str, split: dict = {"test_source": "s3://default/test.csv"}, note: dict = {}) -> None:  # noqa: B006
        pass

    def test_addresses_in_a_split_are_read(self, tmp_path):
        @dsl.pipeline
        def pipeline(address: str = "s3://parameter/v.csv", split: dict = {"validation_source": "minio://pipeline/v"}):  # noqa: B006
            self.prepare(source="digits", note={"test_source": "s3://note"})
            self.prepare(source="s3://rows/a.csv", split=split)
            self.prepare(source="digits", split={"validation_source": address, "group_column": "s3:", "seed": 1})
            self.prepare(source="digits", split={"test_source": f"{address}.gz"})

        assert sorted(self.buckets_of(pipeline, tmp_path)) == [
            StepBucket("prepare", "test_source", "s3://default/test.csv"),
            StepBucket("prepare-2", "source", "s3://rows/a.csv"),
            StepBucket("prepare-2", "validation_source", "minio://pipeline/v"),
            StepBucket("prepare-3", "validation_source", "s3://parameter/v.csv"),
        ]
        of_another_library = {bucket.parameter for bucket in self.buckets_of(pipeline, tmp_path, library="")}
        assert of_another_library & {"validation_source", "test_source"} == set()

    def test_an_address_in_no_bucket_is_a_warning(self):
        assert judge_address("export-model", "/mnt/exports") == Check(
            "bucket of export-model",
            "warning",
            "/mnt/exports is in no bucket of an S3 store; a path is on the disk of the pod, and lost with it",
            "set the input bucket of export-model, such as s3://BUCKET/PREFIX",
        )

    @pytest.mark.parametrize("name", ["train_and_export", "train_and_deploy", "export_model"])
    def test_the_compiled_pipelines_name_no_bucket(self, name):
        spec = read_pipeline((SPECS / f"{name}.yaml").read_text())
        assert read_step_buckets(spec) == [StepBucket("export-model", "bucket", "")]

    @pytest.mark.parametrize(
        ("uri", "bucket"),
        [("s3://b/k", "b"), ("minio://b", "b"), ("", ""), ("./b", ""), ("gs://b/k", ""), ("s3:///k", "")],
    )
    def test_the_bucket_of_an_address(self, uri, bucket):
        assert bucket_of(uri) == bucket

    def test_the_models_beside_the_artifacts(self):
        assert judge_models("export-model", "minio://mlpipeline/private-artifacts/team/v2/artifacts", STORE) == Check(
            "models",
            "ok",
            "export-model exports to minio://mlpipeline/private-artifacts/team/models, because it names no bucket",
        )
        assert judge_models("export-model", "gs://team/v2/artifacts", Refusal("forbidden")) == Check(
            "models",
            "warning",
            "where export-model exports is not known, because the pipeline root is not: forbidden",
            "set the input bucket of export-model, or fix the problem above",
        )
        assert judge_models("export-model", "gs://team/v2/artifacts", STORE) == Check(
            "models",
            "failed",
            "export-model names no bucket, and models cannot be beside the artifacts: 'gs://team' is not a storage "
            "address: use s3://bucket/key, minio://bucket/key, file:///path or a local path",
            "set the input bucket of export-model",
        )
