"""
The Helm chart: its values follow its schema, Kubernetes and the gateway accept what it renders, and the active
gateway's pod of a pair has the label.

Tests that need Helm are skipped without it; `python3 .package/chart.py` downloads it and Kubernetes' schemas.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jsonschema_rs
import pytest
import yaml

from gateway.admin.monitoring import dashboard, rules
from gateway.config import parse
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / ".package" / "chart"
TOOLS = ROOT / "build" / "tools"
HELM, KUBECONFORM = (
    shutil.which(name, path=f"{TOOLS}{os.pathsep}{os.environ['PATH']}") for name in ("helm", "kubeconform")
)
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())

SINGLE: dict[str, Any] = {
    "users": {"ann": {"password": "HASH", "publish": ["topic://>"], "globalAccess": "read-only"}}
}
PAIR = {**SINGLE, "mode": "pair", "postgresql": {"url": "postgresql://rewind@db/rewind"}}


def leaves(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The options, and the schema of each."""
    for name, said in schema["properties"].items():
        here = f"{path}{name}"
        if "properties" in said:
            yield from leaves(said, f"{here}.")
        elif here not in ("global", "mode"):
            yield here, said


OPTIONS = dict(leaves(SCHEMA))


NEEDS: dict[str, dict[str, Any]] = {
    "service.nodePort": {"service": {"type": "NodePort"}},
    "service.loadBalancerSourceRanges": {"service": {"type": "LoadBalancer"}},
    "tls.clientCa": {"tls": {"secretName": "certificate"}},
    "postgresql.standbyReads": {"postgresql": {"readUrl": "postgresql://standby/rewind"}},
    "postgresql.passwordSecret.key": {"postgresql": {"passwordSecret": {"name": "database"}}},
    **{
        path: {path.partition(".")[0]: {"enabled": True}}
        for path in OPTIONS
        if path.startswith(("serviceMonitor.", "prometheusRule."))
    },
    "dashboard.labels": {"dashboard": {"enabled": True}},
}
"""Other options that must be set for an option to have an effect."""


def keys(table: dict[str, Any], path: str = "") -> Iterator[str]:
    """The options as in values.yaml."""
    for name, value in table.items():
        here = f"{path}{name}"
        if here in OPTIONS or not isinstance(value, dict):
            yield here
        else:
            yield from keys(value, f"{here}.")


def merged(*tables: dict[str, Any]) -> dict[str, Any]:
    """Tables merged like Helm's: later ones override earlier ones."""
    found: dict[str, Any] = {}
    for table in tables:
        for name, value in table.items():
            is_table = isinstance(value, dict) and isinstance(found.get(name), dict)
            found[name] = merged(found[name], value) if is_table else value
    return found


def nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


def module(name: str) -> Any:
    """Load a file of `.package`, which is no Python package."""
    spec = importlib.util.spec_from_file_location(f"packaged_{name}", ROOT / ".package" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


# --- without Helm ---------------------------------------------------------------------------------------------------


def test_the_schema_knows_the_values_and_no_others() -> None:
    """Each option has an example that differs from the default and fits the schema."""
    assert set(keys(VALUES)) - {"mode"} == set(OPTIONS)
    jsonschema_rs.validate(SCHEMA, merged(VALUES, SINGLE))
    for path, said in OPTIONS.items():
        (example,) = said["examples"]
        jsonschema_rs.validate(SCHEMA, merged(VALUES, SINGLE, nested(path, example)))
        default = VALUES
        for name in path.split("."):
            default = default[name]
        assert example != default, path
    for wrong in (
        {"mode": "three"},
        {"mode": "pair"},
        {"replicas": 3},
        {"users": {"a/b": {}}},
        {"tls": {"secretName": "A_B"}},
    ):
        with pytest.raises(jsonschema_rs.ValidationError):
            jsonschema_rs.validate(SCHEMA, merged(VALUES, SINGLE, wrong))


def test_the_chart_has_the_version_of_the_gateway() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["version"] == chart["appVersion"] == version


def test_templates_use_values_that_there_are() -> None:
    """Helm renders a misspelled value as nothing, without an error."""
    text = "".join(file.read_text() for file in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values((?:\.\w+)+)", text))
    assert used
    tables = {path.rpartition(".")[0] for path in OPTIONS} | {"postgresql", "tls"}
    known = {*OPTIONS, *tables, "mode"}
    assert {path[1:] for path in used} - known == set()


def test_the_archive_is_the_same_every_time(tmp_path: Path) -> None:
    """The archive also contains the gateway's dashboard and alerting rules."""
    archives = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        archives.append(
            module("chart").build(
                tmp_path / str(number), tmp_path / f"{number}-scratch", "0.1.0", 1_700_000_000
            )
        )
    assert archives[0].read_bytes() == archives[1].read_bytes()
    assert archives[0].name == "rewind-0.1.0.tgz"
    with tarfile.open(archives[0]) as archive:
        names = archive.getnames()
        assert {"rewind/Chart.yaml", "rewind/values.schema.json", "rewind/templates/statefulset.yaml"} <= set(
            names
        )
        assert json.load(archive.extractfile("rewind/files/dashboard.json")) == dashboard()  # type: ignore[arg-type]
        assert archive.extractfile("rewind/files/rules.yaml").read().decode() == rules()  # type: ignore[union-attr]
    beside = archives[0].parent
    assert json.loads((beside / "rewind-dashboard.json").read_text()) == dashboard()
    assert (beside / "rewind-rules.yaml").read_text() == rules()


class Cluster(ThreadingHTTPServer):
    """A fake of a gateway's readiness and of the Kubernetes API that patches pods."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), partial(Asked, self))
        self.is_ready = False
        self.refuses = self.refused = False
        self.patches: list[tuple[str, str, Any]] = []


class Asked(BaseHTTPRequestHandler):
    def __init__(self, cluster: Cluster, *arguments: Any) -> None:
        self.cluster = cluster
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self.send_response(200 if self.cluster.is_ready else 503)
        self.end_headers()

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.cluster.refuses:
            self.cluster.refused = True
        else:
            self.cluster.patches.append(
                (self.path, self.headers["Authorization"], body["metadata"]["labels"])
            )
        self.send_response(500 if self.cluster.refuses else 200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.mark.system
def test_the_label_says_which_gateway_is_active(tmp_path: Path) -> None:
    """
    The label is set when the gateway is ready, removed when it is not, and set again if the API refused. SIGTERM ends
    the process, which is process 1 of its container.
    """
    (tmp_path / "token").write_text("secret\n")
    with Cluster() as cluster:
        Thread(target=cluster.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{cluster.server_port}"
        environment = {
            **os.environ,
            "READYZ": f"{url}/readyz",
            "API": f"{url}/api/pods/rewind-0",
            "ACCOUNT": str(tmp_path),
        }
        with subprocess.Popen(
            [sys.executable, "-I", CHART / "files" / "active.py"], env=environment
        ) as running:

            def told(value: str | None) -> bool:
                last = ("/api/pods/rewind-0", "Bearer secret", {"rewind/active": value})
                return cluster.patches[-1:] == [last]

            try:
                wait_until(lambda: told(None), "a gateway that waits has none")
                cluster.refuses = cluster.is_ready = True
                wait_until(lambda: cluster.refused, "the API refuses")
                cluster.refuses = False
                wait_until(lambda: told("true"), "the active one has it")
                cluster.is_ready = False
                wait_until(lambda: told(None), "it has been taken over")
            finally:
                running.terminate()
            assert running.wait(10) == 0
        cluster.shutdown()


# --- by Helm --------------------------------------------------------------------------------------------------------

pytestmark = pytest.mark.timeout(600)  # seconds: Helm runs once for each option


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as it is packed."""
    if HELM is None:
        pytest.skip("there is no helm here; `python3 .package/chart.py` brings it")
    return Path(module("chart").fill(tmp_path_factory.mktemp("chart") / "rewind"))


def helm(*arguments: object, values: dict[str, Any], fails: bool = False) -> str:
    command = [HELM or "helm", *map(str, arguments), "--kube-version", "1.31.0", "--values", "-"]
    done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def rendered(chart: Path, *values: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects that Kubernetes gets."""
    text = helm("template", "rewind", chart, "--namespace", "messaging", values=merged(*values))
    return [found for found in yaml.load_all(text, yaml.CSafeLoader) if found]


def of_kind(kind: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in found if one["kind"] == kind]


@pytest.fixture(scope="module")
def all_rendered(chart: Path) -> dict[str, list[dict[str, Any]]]:
    """The objects with each option alone, and with all options together."""
    found = {"single": rendered(chart, SINGLE), "pair": rendered(chart, PAIR)}
    for path, said in OPTIONS.items():
        mode = PAIR if path.startswith("postgresql.") else SINGLE
        found[path] = rendered(chart, mode, NEEDS.get(path, {}), nested(path, said["examples"][0]))
    watched = {name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboard")}
    tls = {"tls": {"secretName": "certificate", "clientCa": True}}
    found["pair with all"] = rendered(chart, PAIR, watched, tls, {"service": {"type": "LoadBalancer"}})
    return found


@pytest.mark.parametrize("values", [SINGLE, PAIR], ids=["single", "pair"])
def test_helm_finds_nothing_wrong(chart: Path, values: dict[str, Any]) -> None:
    """No warning and no recommendation, except for the missing icon."""
    assert "0 chart(s) failed" in helm("lint", chart, "--strict", values=values)


def test_what_is_missing_is_said(chart: Path) -> None:
    """Helm refuses values that lack something required, before anything is installed."""
    for values, says in (
        ({}, "name at least one"),
        ({"users": {"ann": {}}}, "users.ann.password"),
        ({**SINGLE, "mode": "pair"}, "url"),
        ({**SINGLE, "replicas": 3}, "replicas"),
    ):
        assert says in helm("template", "rewind", chart, values=values, fails=True)


def test_each_option_changes_something(chart: Path, all_rendered: dict[str, list[dict[str, Any]]]) -> None:
    """An option's effect is there with the option, and not without it."""
    for path in OPTIONS:
        mode = PAIR if path.startswith("postgresql.") else SINGLE
        needs = NEEDS.get(path, {})
        without = (
            rendered(chart, mode, needs) if needs else all_rendered["pair" if mode is PAIR else "single"]
        )
        if path.endswith(".enabled") and needs:
            without = all_rendered["single"]
        assert all_rendered[path] != without, path


def test_the_gateway_takes_every_configuration(all_rendered: dict[str, list[dict[str, Any]]]) -> None:
    """
    The gateway accepts each configuration with the requested values; each gateway of a pair advertises its own name.
    """
    for name, found in all_rendered.items():
        (config,) = [one for one in of_kind("ConfigMap", found) if "rewind.json" not in one["data"]]
        settings = [parse(text) for file, text in config["data"].items() if file.endswith(".toml")]
        assert len(settings) == (2 if "pair" in name or name.startswith("postgresql") else 1)
        assert all(one.users["ann"] for one in settings)
    (config,) = of_kind("ConfigMap", all_rendered["pair"])
    first, second = (parse(config["data"][f"rewind-{number}.toml"]) for number in (0, 1))
    stores = [one.vpns["default"].store for one in (first, second)]
    assert [store and store.advertise for store in stores] == [
        f"rewind-{number}.rewind-pods.messaging.svc:5672" for number in (0, 1)
    ]
    assert first.limits.memory_mb == 1536 - 256
    assert "rewind-admin.messaging.svc" in first.admin.hosts
    secured = parse(of_kind("ConfigMap", all_rendered["tls.clientCa"])[0]["data"]["rewind-0.toml"])
    assert secured.listeners[0].port == 5671 and secured.listeners[0].tls and secured.admin.tls


def test_pods_are_confined_and_probed(all_rendered: dict[str, list[dict[str, Any]]]) -> None:
    """
    They run as user 10001 with a read-only root and no privileges; only the pods that need the API have access to it.
    """
    for name, found in all_rendered.items():
        (workload,) = of_kind("StatefulSet", found)
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsUser"] == 10001 and pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert ("account" in mounted) == (container["name"] == "active")
        is_pair = workload["spec"]["replicas"] == 2
        gateway = pod["containers"][0]
        paths = [gateway[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
        assert [one["path"] for one in paths] == [
            "/healthz",
            "/healthz",
            "/healthz" if is_pair else "/readyz",
        ]
        is_tls = name.startswith("tls.") or name == "pair with all"
        assert {one["scheme"] for one in paths} == {"HTTPS" if is_tls else "HTTP"}
        ports = {port["name"]: port["containerPort"] for port in gateway["ports"]}
        assert ports == {"amqp": 5671 if is_tls else 5672, "admin": 8672}


def test_what_selects_the_pods_finds_them(all_rendered: dict[str, list[dict[str, Any]]]) -> None:
    """Selectors of services, disruption budget and network policy; in a pair, services lead to the active gateway."""
    for found in all_rendered.values():
        (workload,) = of_kind("StatefulSet", found)
        labels = workload["spec"]["template"]["metadata"]["labels"]
        is_pair = workload["spec"]["replicas"] == 2
        services = of_kind("Service", found)
        assert len(services) == 3
        for service in services:
            selector = dict(service["spec"]["selector"])
            is_for_clients = not service["metadata"]["name"].endswith("-pods")
            assert (selector.pop("rewind/active", None) == "true") == (is_pair and is_for_clients)
            assert selector.items() <= labels.items()
        assert workload["spec"]["serviceName"] in {service["metadata"]["name"] for service in services}
        for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
            for one in of_kind(kind, found):
                assert one["spec"][key]["matchLabels"].items() <= labels.items()
        for monitor in of_kind("ServiceMonitor", found):
            wanted = monitor["spec"]["selector"]["matchLabels"].items()
            assert [s["metadata"]["name"] for s in services if wanted <= s["metadata"]["labels"].items()] == [
                workload["spec"]["serviceName"]
            ]
        for role in of_kind("Role", found):
            name = workload["metadata"]["name"]
            assert role["rules"][0]["resourceNames"] == [f"{name}-0", f"{name}-1"]


def test_rules_and_dashboard_are_those_of_the_gateway(all_rendered: dict[str, list[dict[str, Any]]]) -> None:
    (rule,) = of_kind("PrometheusRule", all_rendered["pair with all"])
    assert rule["spec"] == yaml.safe_load(rules())
    published = of_kind("PrometheusRule", all_rendered["prometheusRule.docs"])[0]["spec"]
    assert published == yaml.safe_load(rules("https://docs.example.com/rewind"))
    (board,) = [
        one for one in of_kind("ConfigMap", all_rendered["pair with all"]) if "rewind.json" in one["data"]
    ]
    assert json.loads(board["data"]["rewind.json"]) == dashboard()


OURS = ("ServiceMonitor", "PrometheusRule")
"""Kinds of Prometheus' operator, which are missing in Kubernetes' own schemas."""


@pytest.mark.parametrize("version", ["1.25.0", "1.31.0", "1.36.0"])
def test_kubernetes_takes_what_is_rendered(
    version: str, all_rendered: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Every field is known and has the right type, in an old and in a new version of Kubernetes."""
    schemas = TOOLS / "kubernetes-json-schema"
    if KUBECONFORM is None or not schemas.exists():
        pytest.skip("there is no kubeconform here, or no schemas; `python3 .package/chart.py` brings both")
    for number, found in enumerate(all_rendered.values()):
        (tmp_path / f"{number}.yaml").write_text(yaml.dump_all(found, Dumper=yaml.CSafeDumper))
    place = f"{schemas}/{version}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    command = [
        KUBECONFORM,
        "-strict",
        "-summary",
        "-skip",
        ",".join(OURS),
        "-schema-location",
        place,
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Errors: 0" in done.stdout, done.stdout + done.stderr
    assert int(re.findall(r"Valid: (\d+)", done.stdout)[0]) > 8 * len(all_rendered)
