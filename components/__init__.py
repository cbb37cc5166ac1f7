"""The steps that a pipeline is composed of: `prepare_data`, `train`, `evaluate`, `export_model`.

They run on a stock Python image and carry their code in the compiled YAML. `steps()` makes the same four for an
image or a package of yours; the environment variables KFP_DISTRIBUTED_IMAGE and KFP_DISTRIBUTED_PACKAGE do that for
the four of this module.
"""

import os

# A step's container has kfp without the compiler; kfp's own package looks at the same variable.
if os.environ.get("_KFP_RUNTIME") != "true":
    from kfp_distributed.components.packaging import Delivery
    from kfp_distributed.components.steps import Steps, steps

    # Last, for the names of the four are those of the folders beside this file, too.
    prepare_data, train, evaluate, export_model = steps(
        image=os.environ.get("KFP_DISTRIBUTED_IMAGE", ""), package=os.environ.get("KFP_DISTRIBUTED_PACKAGE", "")
    )

    __all__ = ["Delivery", "Steps", "evaluate", "export_model", "prepare_data", "steps", "train"]
