"""What this library uses of Horovod without its promise, with the reason, the versions and the test of each use.

Horovod documents `horovodrun`, which starts ranks by SSH. In a job, the training operator's script starts them, and
the launcher must see each exit code. So trainers/runtime/horovodrun.py uses the parts of `horovodrun`:
https://github.com/horovod/horovod/blob/v0.28.1/horovod/runner/gloo_run.py#L303 (launch_gloo_elastic). 0.28.1 is the
last version of Horovod. tests/trainers/test_horovod_internals.py fails when one of the changes here is no longer
needed.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def start_driver(
    find_hosts: Callable[[], dict[str, int]],
    fewest: int,
    most: int,
    slots: int,
    timeout: int,
    number: Callable[[str], int],
) -> tuple[Any, int]:
    """Start the rendezvous of an elastic job and the driver that assigns ranks to hosts.

    Args:
        find_hosts: Returns the hosts that are there, each with its number of slots. The driver calls it each second.
        fewest: Number of hosts below which the driver ends the job.
        most: Number of hosts above which the driver does not use more.
        slots: Number of slots of each host.
        timeout: Seconds to wait for the first hosts.
        number: Returns the number of a host, by which new hosts get their ranks.

    Returns:
        The driver, a `horovod.runner.elastic.driver.ElasticDriver`, and the port of the rendezvous.
    """
    from horovod.runner.elastic.rendezvous import create_rendezvous_handler
    from horovod.runner.http.http_server import RendezvousServer

    order_hosts(number)
    rendezvous = RendezvousServer(0)
    discovery = SimpleNamespace(find_available_hosts_and_slots=find_hosts)
    driver = _driver_class(fewest, slots)(rendezvous, discovery, fewest * slots, most * slots, timeout)
    return driver, rendezvous.start(create_rendezvous_handler(driver))


def order_hosts(number: Callable[[str], int]) -> None:
    """Let Horovod number the ranks of new hosts in the order of the hosts.

    Horovod takes the order of a set of names, which differs between two processes, and has no option for it:
    https://github.com/horovod/horovod/blob/v0.28.1/horovod/runner/elastic/discovery.py#L216. Hosts that have ranks keep
    their order, as in Horovod.

    Args:
        number: Returns the number of a host.
    """
    from horovod.runner.elastic.discovery import HostManager

    HostManager.order_available_hosts = staticmethod(
        lambda hosts, before: [*filter(hosts.__contains__, before), *sorted(hosts - {*before}, key=number)]
    )


def _driver_class(fewest: int, slots: int) -> Any:  # noqa: ANN401  (horovod is not installed where types are checked)
    """Return the class of a driver that ends the job at once if too few hosts are left.

    Horovod waits for new ones until its timeout, which is also the timeout of the start:
    https://github.com/horovod/horovod/blob/v0.28.1/horovod/runner/elastic/driver.py#L106.
    """
    from horovod.runner.elastic.driver import ElasticDriver

    class Driver(ElasticDriver):  # type: ignore[misc]  # horovod is not installed where types are checked
        def resume(self) -> None:
            left = self._host_manager.current_hosts.count_available_slots() // slots
            if left < fewest:
                print(f"{left} workers are left, which is fewer than min_workers={fewest}", flush=True)
                self.stop()
            else:
                print(f"continues with {left} workers", flush=True)
                super().resume()

    return Driver


def environment_of_ranks(address: str, port: int) -> dict[str, str]:
    """Return the environment variables by which all ranks find the rendezvous.

    Args:
        address: IP address of this machine, on the network of the ranks.
        port: Port of the rendezvous.
    """
    from horovod.runner.gloo_run import create_run_env_vars
    from horovod.runner.util.network import net_if_addrs

    interface = next(
        name for name, entries in net_if_addrs().items() if address in (entry.address for entry in entries)
    )
    return dict(create_run_env_vars(address, [interface], str(port), elastic=True))


def environment_of_slot(slot: Any) -> dict[str, str]:  # noqa: ANN401
    """Return the environment variables of one rank.

    Args:
        slot: The `horovod.runner.common.util.hosts.SlotInfo` that the driver has assigned to the rank.
    """
    from horovod.runner.gloo_run import create_slot_env_vars

    return dict(create_slot_env_vars(slot))
