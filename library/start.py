"""Start a step after the bootstrap has found the library: install its packages and run KFP's executor."""

import os
import runpy

from kfp_distributed.library.packages import install

INSTALLS_PACKAGES = "KFP_DISTRIBUTED_INSTALLS_PACKAGES"
"""Environment variable that is set in a step that installs its packages when it starts. Such a step may also install
what only some of its inputs need."""


def start(executor: str, kfp: str = "", *packages: str) -> None:
    """Install the packages of a step and run the executor.

    The executor imports the step's program as a module and calls its function.

    Args:
        executor: Name of KFP's module that runs a function, such as "kfp.dsl.executor_main".
        kfp: Requirement of kfp. It is installed without its dependencies. "" (the default) installs nothing.
        packages: Requirements of the step's packages.

    Raises:
        SystemExit: pip failed, or the executor has finished.
    """
    if kfp:
        install(*packages, alone=[kfp])
        os.environ[INSTALLS_PACKAGES] = "1"
    # With this variable kfp imports only its runtime, as in its own steps.
    os.environ["_KFP_RUNTIME"] = "true"
    runpy.run_module(executor, run_name="__main__", alter_sys=True)
