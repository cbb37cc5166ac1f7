"""Run the steps on this machine, and train on the cluster of KUBECONFIG."""

from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.pipelines.train_and_export import train_and_export

if __name__ == "__main__":
    with local_run("my-run", embedded_store=False):
        train_and_export(
            runner="kubernetes",
            checkpoint_uri="s3://team-a-training",
            bucket="team-a-models",
        )
