"""What this library uses of kfp without its promise, with the reason, the versions and the test of each use.

kfp names as public what is in https://kubeflow-pipelines.readthedocs.io. All uses are needed by kfp 2.15 to 2.17.
tests/components/test_kfp_internals.py fails when one is no longer needed.
"""

import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from kfp.dsl.pipeline_channel import PipelineParameterChannel
from kfp.dsl.pipeline_context import Pipeline
from kfp.dsl.python_component import PythonComponent
from kfp.dsl.types import type_utils
from kfp.local import logging_utils, subprocess_task_handler
from kfp.local.config import LocalExecutionConfig

FLOAT, _INT = "Float", "Integer"
_NAMES = {name: type_utils.get_parameter_type_name(name) for name in (FLOAT, _INT)}


def float_parameters(component: Any) -> frozenset[str]:  # noqa: ANN401  (kfp exports no type for its components)
    """Return the names of the parameters of a component or pipeline that are floats.

    kfp has no function that returns the types of a component's parameters.
    """
    inputs = component.component_spec.inputs or {}
    return frozenset(name for name, spec in inputs.items() if _parameter_type(spec.type) == _NAMES[FLOAT])


def as_float_channel(value: Any) -> Any:  # noqa: ANN401
    """Return a channel of ints, such as a pipeline parameter, as a channel of floats. Other values stay as they are.

    kfp compares the types of a channel and of the parameter by their names, and has no option that allows an int:
    https://github.com/kubeflow/pipelines/blob/679021c03b3f1cc48d75ab06e9a1e4a231ab6f41/sdk/python/kfp/dsl/types/type_utils.py
    (verify_type_compatibility). The public `kfp.TYPE_CHECK = False` ends all checks of the process.
    """
    if not isinstance(value, PipelineParameterChannel) or _parameter_type(value.channel_type) != _NAMES[_INT]:
        return value
    # kfp finds the value by the name and the task. The type is only compared with the type of the parameter.
    # copy.copy() fails for an item of a ParallelFor, whose every attribute is a key of the item.
    channel = object.__new__(type(value))
    vars(channel).update(vars(value), channel_type=FLOAT)
    return channel


def _parameter_type(name: object) -> str | None:
    """Return kfp's name of a parameter's type; None for the type of an artifact."""
    return type_utils.get_parameter_type_name(name) if type_utils.is_parameter_type(name) else None


class StepComponent(PythonComponent):  # type: ignore[misc]  # kfp has no types
    """A component that stands for the package of its step, which has the same name.

    Therefore `import kfp_distributed.components.train.step as step` works, which reads `step` from the component.
    `@dsl.component` makes a PythonComponent and takes no other class.
    """

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return an imported module of the package of the step."""
        function = vars(self).get("python_func")
        package = function.__module__.rpartition(".")[0] if function else ""
        module = sys.modules.get(f"{package}.{name}")
        if module is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return module


class NeverCached(StepComponent):
    """A component whose tasks always run.

    The public `set_caching_options` is a method of a task, and `@dsl.component` has no option for it:
    https://github.com/kubeflow/pipelines/blob/99fbfa7ed43f0649edbabafd91522deacb0e0410/sdk/python/kfp/dsl/component_decorator.py.
    The variable of https://github.com/kubeflow/pipelines/pull/11222 concerns all tasks that are compiled.
    """

    def __call__(self, *arguments: Any, **inputs: Any) -> Any:  # noqa: ANN401
        """Create a task."""
        task = super().__call__(*arguments, **inputs)
        # Outside of a pipeline the task has run already and refuses settings.
        return task.set_caching_options(False) if Pipeline.get_default_pipeline() else task

    @property
    def pipeline_spec(self) -> Any:  # noqa: ANN401
        """Return the pipeline of one task that kfp compiles from the component."""
        spec = super().pipeline_spec
        for task in spec.root.dag.tasks.values():
            task.caching_options.enable_cache = False
        return spec


def local_configuration() -> Any:  # noqa: ANN401
    """Return the configuration of `kfp.local` in this process, for `restore_local_configuration`. None before `init`.

    `kfp.local.init` sets it, and no function returns it or sets it back:
    https://github.com/kubeflow/pipelines/blob/268e0898ecdd3f9447988b6e675676eb21c584f0/sdk/python/kfp/local/config.py.
    """
    return LocalExecutionConfig.instance


def restore_local_configuration(configuration: Any) -> None:  # noqa: ANN401
    """Set the configuration of `kfp.local` to the one that `local_configuration` has returned."""
    LocalExecutionConfig.instance = configuration


class SharedContext:
    """A context that the first of several threads enters, and that the last one exits.

    Attributes:
        users: Number of threads inside.
        is_refused: Whether entering raises a RuntimeError.
    """

    def __init__(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        self.users = 0
        self.is_refused = False
        self._context = context
        self._lock = threading.Lock()
        self._entered = ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Be inside for the duration of the block."""
        with self._lock:
            if self.is_refused:
                raise RuntimeError("this local_run was interrupted, and runs no further step: start another one")
            if not self.users:
                self._entered.enter_context(self._context())
            self.users += 1
        try:
            yield
        finally:
            with self._lock:
                self.users -= 1
                if not self.users:
                    self._entered.close()

    def close(self) -> None:
        """Exit the context even if an interrupt has left a thread counted as inside."""
        self._entered.close()


@contextmanager
def corrected_runner() -> Iterator[SharedContext]:
    """Let `kfp.local` run steps side by side, as those of a ParallelFor, and pass their inputs as they are.

    kfp replaces `print` and the handlers of the root logger while a step runs, and sets back what it found. A step that
    begins beside another finds those of the other step, so each further step indents its lines more, the records of a
    step get lost, and `print` stays indented after the run:
    https://github.com/kubeflow/pipelines/blob/268e0898ecdd3f9447988b6e675676eb21c584f0/sdk/python/kfp/local/logging_utils.py.

    It also replaces each "python3" by the path of its interpreter, in the inputs of a step and in the names of packages
    too: https://github.com/kubeflow/pipelines/blob/2.15.0/sdk/python/kfp/local/subprocess_task_handler.py
    (replace_python_executable).

    Yields:
        The context in which each step runs. Where it is refused, no other step begins; kfp's ParallelFor would begin
        the next ones also after an interrupt.
    """
    running = SharedContext(logging_utils.local_logger_context)
    indented = SharedContext(logging_utils.indented_print)
    run_process = subprocess_task_handler.run_local_subprocess

    def run_unless_refused(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        # A step that installs packages waits here for another one.
        return 1 if running.is_refused else run_process(*arguments, **options)

    replaced: tuple[tuple[Any, str, Any], ...] = (
        (logging_utils, "local_logger_context", running),
        (logging_utils, "indented_print", indented),
        (subprocess_task_handler, "run_local_subprocess", run_unless_refused),
        (subprocess_task_handler, "replace_python_executable", _with_interpreter),
    )
    before = [getattr(module, name) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield running
    finally:
        for (module, name, _), value in zip(replaced, before, strict=True):
            setattr(module, name, value)
        indented.close()
        running.close()


def _with_interpreter(command: Sequence[str], interpreter: str) -> list[str]:
    """Return the command of a step with an interpreter in place of the command python3, in the scripts of sh alone."""
    return [
        # The names of packages are in quotes.
        re.sub(r"(?<!\S)python3(?= )", lambda _: interpreter, argument)
        if (shell, flag) in (("sh", "-c"), ("sh", "-ec"))
        else argument
        for shell, flag, argument in zip(["", "", *command], ["", *command], command, strict=False)
    ]


def input_without_value(error: BaseException) -> str:
    """Return the name of the input for which kfp's local runner has no value, as the cause of an error; "" if none.

    An input of a pipeline with the default None has none. The error does not name it, and its function is the only one
    with this name:
    https://github.com/kubeflow/pipelines/blob/2.15.0/sdk/python/kfp/local/orchestrator/orchestrator_utils.py.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "join_user_inputs_and_defaults":
            return str(frame.f_locals.get("input_name", ""))
    return ""
