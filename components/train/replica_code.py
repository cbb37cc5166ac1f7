"""The modules that run inside the replicas, to be given to them where they are not installed."""

from importlib import import_module
from pathlib import Path


def replica_modules() -> dict[str, str]:
    """The rooms that replicas need, as they are here: source by path relative to the import root."""
    found: dict[str, str] = {}
    for room in ("storage", "trainers"):
        folder = Path(str(import_module(f"kfp_distributed.{room}").__file__)).parent
        found |= {f"kfp_distributed/{room}/{each.name}": each.read_text() for each in sorted(folder.glob("*.py"))}
    return found
