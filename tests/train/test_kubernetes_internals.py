"""What the Kubernetes client lacks, for which cluster_api/kubernetes_internals.py exists."""

import http.server
import threading

import pytest
from kubernetes import client, config

from kfp_distributed.cluster_api.kubernetes_internals import connections, set_socket_options


class Refusal(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(403)
        self.end_headers()

    def log_message(self, *arguments):
        pass


def test_the_public_call_raises_where_the_connections_return_a_response():
    server = http.server.HTTPServer(("127.0.0.1", 0), Refusal)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        configuration = client.Configuration(host=f"http://127.0.0.1:{server.server_port}")
        api = client.ApiClient(configuration)
        with pytest.raises(client.ApiException):
            api.call_api("/version", "GET", _preload_content=False)
        assert connections(api).request("GET", f"{configuration.host}/version").status == 403
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_configuration_has_no_socket_options():
    configuration = client.Configuration()
    assert not hasattr(configuration, "socket_options")
    api = client.ApiClient(configuration)
    set_socket_options(api, [(1, 2, 3)])
    assert connections(api).connection_from_host("127.0.0.1", 1).conn_kw["socket_options"] == [(1, 2, 3)]


def test_no_public_function_lists_users():
    assert [name for name in dir(config) if name.startswith("list_")] == ["list_kube_config_contexts"]
