from kfp_distributed.trainers.runtime.job_description import JobDescription

JOB = JobDescription(
    name="job",
    program={"trainer": "keras_classifier"},
    parameters={"epochs": 3},
    train_uri="s3://b/train",
    validation_uri="",
    model_uri="s3://b/model",
    checkpoint_uri="s3://b/checkpoints",
    metrics_uri="s3://b/metrics",
    leader="chief-0",
    data_replicas=("worker-0", "worker-1"),
    parameter_servers=1,
)


def test_a_job_file_can_be_written_and_read():
    assert JobDescription.from_json(JOB.to_json()) == JOB
