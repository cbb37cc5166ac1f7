"""Commands that need a cluster, on a machine that has none."""

import pytest
from click.testing import CliRunner

from kfp_distributed.cli.main import main
from kfp_distributed.cluster_api import configuration

pytestmark = pytest.mark.takes(8)

WHAT_TO_DO = "set KUBECONFIG to a kubeconfig file, or run this in a pod of the cluster"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(configuration, "OWN_NAMESPACE", tmp_path / "serviceaccount" / "namespace")
    return tmp_path


@pytest.mark.parametrize(
    "words", [["install"], ["uninstall"], ["doctor"], ["jobs"], ["watch", "JOB"], ["logs", "JOB"], ["cancel", "JOB"]]
)
@pytest.mark.parametrize("kubeconfig", [None, ""])
def test_a_command_names_the_places_where_it_has_looked(home, words, kubeconfig, monkeypatch):
    if kubeconfig is not None:
        monkeypatch.setenv("KUBECONFIG", kubeconfig)
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.output) == (
        2,
        "Error: there is no configuration of a cluster: KUBECONFIG is not set, ~/.kube/config does not exist, and "
        f"there is no service account of a pod in {home / 'serviceaccount'}; {WHAT_TO_DO}\n",
    )


@pytest.mark.parametrize("files", ["{home}/a", "{home}/a:{home}/b"])
def test_files_of_kubeconfig_that_do_not_exist_are_named(home, files, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", value := files.format(home=home))
    done = CliRunner().invoke(main, ["jobs"])
    assert (done.exit_code, done.output) == (
        2,
        f"Error: there is no configuration of a cluster: KUBECONFIG = '{value}' names no existing file, and there "
        f"is no service account of a pod in {home / 'serviceaccount'}; {WHAT_TO_DO}\n",
    )


@pytest.mark.parametrize("words", [["compile", "specs"], ["install", "--output", "yaml"]])
def test_other_commands_need_no_cluster(words, home, monkeypatch):
    monkeypatch.chdir(home)
    assert CliRunner().invoke(main, words).exit_code == 0
