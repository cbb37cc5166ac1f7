"""`kfp-distributed`, the command line."""

import signal
import sys
from importlib import import_module

import click

_COMMANDS = {
    "install": "Put the library and the permissions of the steps into a namespace.",
    "uninstall": "Delete the objects that install has created.",
    "doctor": "Check that a cluster is ready for training.",
    "compile": "Compile every component and pipeline to YAML.",
    "render": "Print the objects that a training would create.",
    "estimate": "Estimate the memory that the fine-tuning of a language model needs on each GPU.",
    "schema": "Print the JSON Schema of a distribution_specification or of a split.",
    "jobs": "List the trainings of a namespace.",
    "watch": "Show the progress of a training.",
    "logs": "Print the logs of a training.",
    "cancel": "Delete a training.",
    "serve": "Answer requests for the predictions of a model over HTTP.",
    "models": "List, compare, name and delete exported models.",
}
"""Summaries of the commands. The command NAME is `command` of the module kfp_distributed.cli.commands.NAME."""


class LazyGroup(click.Group):
    """A group that imports a command only when it runs.

    kfp and the Kubernetes client take seconds to import, which `--help` should not.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of `--help`."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. Return None for an unknown name."""
        if cmd_name not in _COMMANDS:
            return None
        try:
            module = import_module(f"kfp_distributed.cli.commands.{cmd_name}")
        except ValueError as error:
            # kfp_distributed.components reads variables of the environment, which may be wrong.
            raise click.ClickException(str(error)) from None
        except ModuleNotFoundError as error:
            raise click.ClickException(
                f"{sys.executable} lacks a package that kfp-distributed needs ({error}). Run: {sys.executable} -m pip "
                "install kfp-distributed"
            ) from None
        command: click.Command = module.command
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run a command. After Ctrl-C, the exit code is the one of shells, and not 1 as for a failure."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # A second Ctrl-C must not show a traceback of the interpreter's own end.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            ctx.exit(128 + signal.SIGINT)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the summaries of the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kfp-distributed")
def main() -> None:
    """Distributed training for Kubeflow Pipelines."""


if __name__ == "__main__":
    main()
