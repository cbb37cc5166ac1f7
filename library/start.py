"""Start a step after the bootstrap has found the library: install its packages and run KFP's executor."""

import os
import re
import runpy

from kfp_distributed.library.packages import install

INSTALLS_PACKAGES = "KFP_DISTRIBUTED_INSTALLS_PACKAGES"
"""Environment variable that is set in a step that installs its packages when it starts. Such a step may also install
what only some of its inputs need."""

_WITHOUT_DEPENDENCIES = ("kfp", "optuna")
"""Packages of which a step needs what works without their dependencies, and others that it names itself."""


def start(executor: str, *packages: str) -> None:
    """Install the packages of a step and run the executor.

    The executor imports the step's program as a module and calls its function.

    Args:
        executor: Name of KFP's module that runs a function, such as "kfp.dsl.executor_main".
        packages: Requirements of the step's packages. Default: none, the image has them.

    Raises:
        SystemExit: pip failed, or the executor has finished.
    """
    if packages:
        alone = [package for package in packages if re.split(r"[^\w-]", package)[0] in _WITHOUT_DEPENDENCIES]
        install(*(package for package in packages if package not in alone), alone=alone)
        os.environ[INSTALLS_PACKAGES] = "1"
    # With this variable kfp imports only its runtime, as in its own steps.
    os.environ["_KFP_RUNTIME"] = "true"
    runpy.run_module(executor, run_name="__main__", alter_sys=True)
