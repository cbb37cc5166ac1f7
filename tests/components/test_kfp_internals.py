"""What kfp lacks, for which components/kfp_interface/kfp_internals.py exists. test_input_values.py shows its use."""

import builtins
import inspect
import logging
import re

import pytest
from kfp import compiler, dsl, local
from kfp.dsl.types.type_utils import InconsistentTypeException
from kfp.local import logging_utils, subprocess_task_handler

from kfp_distributed.components.kfp_interface.kfp_internals import (
    NeverCached,
    as_float_channel,
    corrected_runner,
    local_configuration,
    restore_local_configuration,
)


@dsl.component
def show(x: float) -> str:
    return repr(x)


def compiles(function, tmp_path):
    compiler.Compiler().compile(dsl.pipeline(function), str(tmp_path / "pipeline.yaml"))


def test_kfp_refuses_an_int_for_a_float(tmp_path):
    def of_parameter(n: int = 2):
        show(x=n)

    def of_channel(n: int = 2):
        show(x=as_float_channel(n))

    with pytest.raises(InconsistentTypeException):
        compiles(of_parameter, tmp_path)
    compiles(of_channel, tmp_path)


def test_caching_is_no_option_of_a_component():
    assert [name for name in inspect.signature(dsl.component).parameters if "cach" in name] == []
    spec = NeverCached(show.component_spec, show.python_func).pipeline_spec
    assert [task.caching_options.enable_cache for task in spec.root.dag.tasks.values()] == [False]
    assert [task.caching_options.enable_cache for task in show.pipeline_spec.root.dag.tasks.values()] == [True]


def test_kfp_local_has_no_function_that_restores_its_configuration(tmp_path):
    assert [name for name in local.__all__ if not name.endswith("Runner")] == ["init"]
    before = local_configuration()
    local.init(local.SubprocessRunner(use_venv=False), str(tmp_path), str(tmp_path))
    assert local_configuration() is not before
    restore_local_configuration(before)
    assert local_configuration() is before


def changed_by_overlapping_steps() -> list[bool]:
    """Whether `print` and the root logger stay changed after two steps of which the first ends before the second."""
    logger = logging.getLogger()
    before = builtins.print, list(logger.handlers), logger.level
    changed = []
    for context in (logging_utils.indented_print, logging_utils.local_logger_context):
        first, second = context(), context()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
        changed.append((builtins.print, list(logger.handlers), logger.level) != before)
        builtins.print, logger.handlers[:], _ = before
        logger.setLevel(before[2])
    return changed


def test_steps_that_overlap_change_print_and_logging_for_good_and_go_on_without_the_library():
    assert changed_by_overlapping_steps() == [True, True]
    with corrected_runner() as running:
        assert changed_by_overlapping_steps() == [False, False]
        assert subprocess_task_handler.run_local_subprocess(["true"]) == 0
        running.is_refused = True
        assert subprocess_task_handler.run_local_subprocess(["true"]) == 1
        with pytest.raises(RuntimeError, match="interrupted"), logging_utils.local_logger_context():
            pass
    assert changed_by_overlapping_steps() == [True, True]
    assert subprocess_task_handler.run_local_subprocess(["true"]) == 0


@dsl.component(packages_to_install=["python3", "python3-saml"], pip_index_urls=["https://python3.org/python3"])
def installs() -> str:
    return "python3 -m pip"


def test_kfp_local_replaces_python3_in_names_and_inputs_without_the_library():
    container = installs.component_spec.implementation.container
    command = [*container.command, "--executor_input", '{"x": "python3.11"}', "sh", "/bin/bash", "-c", "python3 -m pip"]
    other = subprocess_task_handler.replace_python_executable
    assert '{"x": "/venv/python.11"}' in other(command, "/venv/python")
    with corrected_runner():
        replaced = subprocess_task_handler.replace_python_executable(command, "/venv/python")
    assert subprocess_task_handler.replace_python_executable is other
    scripts = [command.index("-c") + 1, command.index("-ec") + 1]
    for position, (before, after) in enumerate(zip(command, replaced, strict=True)):
        expected = before
        for option in ("-m ensurepip", "-m pip", "-m kfp.dsl.executor_main") if position in scripts else ():
            expected = expected.replace(f"python3 {option}", f"/venv/python {option}")
        assert after == expected
    assert all("/venv/python -m " in replaced[position] for position in scripts)
    names = re.findall(r"\S*python3\S*", replaced[scripts[0]])
    assert {*names} == {"python3-pip", "https://python3.org/python3", "'python3'", "'python3-saml'"}
