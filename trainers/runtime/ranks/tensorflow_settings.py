"""The environment variables that TensorFlow reads when it is imported."""

import os
from collections.abc import Mapping
from importlib.util import find_spec

from kfp_distributed.trainers.programs.program import Program
from kfp_distributed.trainers.runtime.ranks.cluster import Cluster, Rank, processors

_OF_IMPORT = {
    "ENABLE_RUNTIME_UPTIME_TELEMETRY": "1",
    "HDF5_PLUGIN_PATH": "disable",
    "TF2_BEHAVIOR": "1",
    "TPU_ML_PLATFORM": "Tensorflow",
    "TPU_ML_PLATFORM_VERSION": "",
}
"""What the import of TensorFlow 2.11 to 2.21 sets itself. It replaces the version, which does not add a variable.

A program imports it beside threads, and the C library may crash in a thread that reads a variable while another one is
added."""


def prepare_tensorflow(program: Program, cluster: Cluster, rank: Rank | None, role: str) -> None:
    """Set the environment variables that TensorFlow reads when it is imported."""
    # `fit` of Keras 3 does not work under the strategies of several workers. TensorFlow for Horovod has Keras 2.
    legacy_keras = program.kind == "trainer" or (program.kind == "function" and not rank and find_spec("tf_keras"))
    # 1 shows warnings and errors, 2 only errors. In built-in trainers tf.data warns each worker of how Keras feeds it.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if program.kind == "trainer" else "1")
    if find_spec("tensorflow"):
        for variable, value in _OF_IMPORT.items():
            os.environ.setdefault(variable, value)
    neighbours = rank.local_size if rank else cluster.neighbours
    os.environ.update(tensorflow_environment(os.environ, neighbours, bool(legacy_keras), processors()))
    if "ps" in cluster.addresses:
        # TensorFlow's guide to parameter servers asks for it, so that calls wait for a server that is not there yet.
        os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    if program.kind != "command" and cluster.addresses and role != "evaluator":
        os.environ["TF_CONFIG"] = cluster.training_config()


def tensorflow_environment(
    environment: Mapping[str, str], neighbours: int, legacy_keras: bool, cpus: int
) -> dict[str, str]:
    """Return the environment variables to add for TensorFlow. Variables that are set already stay as they are.

    Processes on one machine share its processors. By default each would start a thread for each processor.

    Args:
        environment: The environment.
        neighbours: Number of the job's processes on this machine.
        legacy_keras: Whether `tf.keras` is tf_keras, which is Keras 2.
        cpus: Number of processors for all of them.
    """
    settings = {"TF_NUM_INTRAOP_THREADS": str(max(1, cpus // neighbours))}
    if legacy_keras:
        settings["TF_USE_LEGACY_KERAS"] = "1"
    return {name: value for name, value in settings.items() if name not in environment}
