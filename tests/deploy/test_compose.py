"""`docker-compose.yml`: by its schema, by yamllint, and by how its parts fit together.

There is no engine here: what it would refuse beyond the schema is looked for by `faults`.
"""

import asyncio
import json
import re
import stat
import subprocess
from pathlib import Path

import dask
import pytest
import yaml

from largek_dask import config
from largek_dask.service.web.hosts import Hosts
from tests.deploy import composed
from tests.deploy.running import DEPLOY, ROOT
from tests.helpers.needs import program

FOLDER = DEPLOY / "compose"
KUBERNETES = DEPLOY / "kubernetes" / "base"
OURS = ("bucket", "scheduler", "worker", "jupyter")


def faults(document):
    """What does not fit together, in words."""
    found = []
    if not re.fullmatch("[a-z0-9][a-z0-9_-]*", document["name"]):
        found.append("the project has a name that no engine takes")
    for name, service in document["services"].items():
        found += [f"{name}: {text}" for text in service_faults(service)]
        found += [f"{name}: {text}" for text in name_faults(service, document)]
        found += [f"{name}: {text}" for text in address_faults(service, document)]
    for kind in ("configs", "secrets", "volumes"):
        used = {one for service in document["services"].values() for one in uses(service, kind)}
        found += [f"nobody uses {kind} {one}" for one in document[kind] if one not in used]
    for name, one in document["configs"].items():
        if not (ROOT / one["file"]).is_file():
            found.append(f"configs {name}: there is no file {one['file']}")
    return found


def uses(service, kind):
    """Names of one kind that a service takes."""
    if kind == "volumes":
        texts = [one for one in service.get("volumes", ()) if isinstance(one, str)]
        return [one.partition(":")[0] for one in texts if ":" in one]
    return [one if isinstance(one, str) else one["source"] for one in service.get(kind, ())]


def service_faults(service):
    """Of one service by itself: what it may do, what it takes, when it ends."""
    if service.get("read_only") is not True:
        yield "may write its root"
    if service.get("cap_drop") != ["ALL"] or "cap_add" in service or "privileged" in service:
        yield "has capabilities"
    if service.get("security_opt") != ["no-new-privileges:true"]:
        yield "may gain privileges"
    if not re.fullmatch(r"[1-9]\d*:\d+", str(service.get("user"))):
        yield "may run as root"
    if service.get("init") is not True:
        yield "leaves ended processes about"
    if not re.fullmatch(r"[1-9]\d*[mg]", str(service.get("mem_limit"))):
        yield "has no limit of memory"
    grace = int(str(service.get("stop_grace_period", "10s")).removesuffix("s"))
    if grace <= config.get("service.shutdown-seconds"):
        yield "is killed before its last checkpoint"
    ends = service.get("healthcheck", {}).get("disable") is True
    if service.get("restart") != ("on-failure" if ends else "unless-stopped"):
        yield "is not started again"
    if not ends and not service.get("healthcheck", {}).get("test"):
        yield "has no health check"
    if not re.search(r":[\w.-]+$", service["image"]):
        yield "is of no version"
    if "network_mode" in service or "pid" in service:
        yield "shares what is the machine's"
    for port in service.get("ports", ()):
        if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", str(port)):
            yield f"port {port} is open to others"
    for name, value in service.get("environment", {}).items():
        if re.search("(?i)secret|password|token", name) and not value.startswith("/run/secrets/"):
            yield f"{name} says a secret"


def name_faults(service, document):
    """Names that lead nowhere, and waiting for what nobody tells."""
    for kind in ("configs", "secrets", "volumes"):
        for one in uses(service, kind):
            if one not in document[kind]:
                yield f"there is no {kind} {one}"
    for name, how in service.get("depends_on", {}).items():
        other = document["services"].get(name)
        if other is None:
            yield f"waits for {name}, which is not there"
            continue
        if set(other.get("profiles", ())) - set(service.get("profiles", ())):
            yield f"waits for {name} of another profile"
        ends = other["healthcheck"].get("disable") is True
        wanted = "service_completed_successfully" if ends else "service_healthy"
        if how.get("condition") != wanted:
            yield f"does not wait until {name} is ready"
    seen = composed.mounted(service, document)
    environment = service.get("environment", {})
    texts = [*service.get("command", ()), *map(str, environment.values())]
    for path in re.findall(r"(?:^|=)(/(?:run|etc)/[\w./]+)", "\n".join(texts), re.M):
        if not any(target == path or target.startswith(path + "/") for target in seen):
            yield f"{path} is not mounted"
    targets = [one["target"] for one in service.get("configs", ())]
    if len(set(targets)) < len(targets):
        yield "two files of settings in one place"


def listens(service):
    """Ports that a service's own command says that it has."""
    text = "\n".join(service.get("command", ()))
    flags = r"^--?(?:port|dashboard-address|s3\.port|web\.listen-address)=:?(\d+)$"
    found = set(re.findall(flags, text, re.M))
    known = {"prom/prometheus": "9090", "grafana/grafana": "3000"}
    return found | {known[one] for one in known if service["image"].startswith(one)}


def address_faults(service, document):
    """Addresses at which nobody is."""
    own = listens(service)
    for port in service.get("ports", ()):
        if str(port).rpartition(":")[2] not in own:
            yield f"publishes {port}, where it does not listen"
    environment = [str(value) for value in service.get("environment", {}).values()]
    check = service.get("healthcheck", {}).get("test", ())
    for text in [*service.get("command", ()), *environment, *check]:
        for host, port in re.findall(r"^(?:tcp|tls|http)://([\w.]+):(\d+)(?:/|$)", text):
            other = service if host == "127.0.0.1" else document["services"].get(host)
            if other is None or port not in listens(other):
                yield f"nobody is at {host}:{port}"


# --- what is there --------------------------------------------------------------------------------


def test_parts_fit_together():
    document = composed.loaded()
    assert faults(document) == []
    assert set(document["services"]) == {"store", *OURS, "prometheus", "grafana"}
    profiles = {name: one.get("profiles") for name, one in document["services"].items()}
    assert profiles["jupyter"] == ["notebook"]
    assert profiles["prometheus"] == profiles["grafana"] == ["observe"]
    assert sum(one is None for one in profiles.values()) == 4


def test_variables():
    """Every one that is read is in the example and names itself; and all of that are read."""
    found = composed.variables(composed.FILE.read_text())
    assert set(found) == set(composed.example())
    assert all(found.values())
    assert all(composed.example().values())


@pytest.mark.slow
def test_schema_of_compose():
    check = program("check-jsonschema", "the extra deploy")
    command = [check, "--builtin-schema", "vendor.compose-spec", composed.FILE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_yamllint():
    """Of all files of settings, those for Kubernetes too."""
    lint = program("yamllint", "the extra deploy")
    command = [lint, "--strict", "-c", str(ROOT / ".yamllint")]
    done = subprocess.run(
        [*command, str(composed.FILE), str(DEPLOY)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


# --- the same as elsewhere ------------------------------------------------------------------------


def kubernetes(file, kind):
    """The document of one kind in a file of Kubernetes' base."""
    documents = yaml.safe_load_all((KUBERNETES / file).read_text())
    [found] = [one for one in documents if one["kind"] == kind]
    return found


def test_the_page_of_jobs_answers_under_the_names_of_its_service():
    there = yaml.safe_load(kubernetes("configuration.yaml", "ConfigMap")["data"]["largek.yaml"])
    mine = yaml.safe_load((FOLDER / "largek.yaml").read_text())
    service, namespace = kubernetes("scheduler.yaml", "Service")["metadata"]["name"], "largek"
    full = f"{service}.{namespace}.svc.cluster.local"
    for settings, names in ((mine, ["scheduler"]), (there, [service, full])):
        # That alone: clusters of other tests read their own settings meanwhile.
        with dask.config.set({"largek.observe.hosts": settings["largek"]["observe"]["hosts"]}):
            for name in names:
                assert asyncio.run(Hosts(lambda: None).accepts(f"{name}:8787"))
            assert not asyncio.run(Hosts(lambda: None).accepts("evil.example:8787"))


def test_what_prometheus_and_grafana_read():
    services = composed.loaded()["services"]
    scrape = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    asked = {
        (target.partition(":")[0], target.partition(":")[2])
        for job in scrape["scrape_configs"]
        for one in job.get("static_configs", ())
        for target in one["targets"]
    } | {
        (name, str(one["port"]))
        for job in scrape["scrape_configs"]
        for one in job.get("dns_sd_configs", ())
        for name in one["names"]
    }
    assert asked == {("scheduler", "8787"), ("worker", "8788")}
    assert all(port in listens(services[host]) for host, port in asked)
    seen = composed.mounted(services["prometheus"], composed.loaded())
    for rules in scrape["rule_files"]:
        assert Path(seen[f"/etc/prometheus/{rules}"]).name == "alerts.yml"
    seen = composed.mounted(services["grafana"], composed.loaded())
    [source] = yaml.safe_load((FOLDER / "grafana/datasources.yml").read_text())["datasources"]
    host, port = re.fullmatch(r"http://(\w+):(\d+)", source["url"]).groups()
    assert port in listens(services[host])
    # The dashboard takes whichever source is a Prometheus: nothing in it names one.
    text = (DEPLOY / "grafana" / "largek.json").read_text()
    [chosen] = [one for one in json.loads(text)["templating"]["list"] if one["name"] == "source"]
    assert (chosen["type"], chosen["query"]) == ("datasource", source["type"])
    named = set(re.findall(r'"type": "prometheus",\s*"uid": "([^"]*)"', text))
    assert named == {"${source}"}
    [provider] = yaml.safe_load((FOLDER / "grafana/dashboards.yml").read_text())["providers"]
    [shown] = [one for one in seen if one.startswith(provider["options"]["path"] + "/")]
    assert (ROOT / seen[shown]).samefile(DEPLOY / "grafana" / "largek.json")


def test_prometheus_takes_its_settings(tmp_path):
    promtool = program("promtool", "Debian's prometheus")
    for source in (FOLDER / "prometheus.yml", DEPLOY / "prometheus" / "alerts.yml"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    command = [promtool, "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# --- secrets --------------------------------------------------------------------------------------


def secrets(*arguments):
    program("openssl", "Debian's openssl")
    command = [str(FOLDER / "secrets.sh"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_secrets_are_made_once_and_for_nobody_else(tmp_path):
    out = tmp_path / "secrets"
    done = secrets(out)
    assert done.returncode == 0, done.stderr
    made = {path.name: path for path in out.iterdir()}
    assert set(made) == set(composed.loaded()["secrets"])
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.values()} == {0o444}
    [identity] = yaml.safe_load(made["s3.json"].read_text())["identities"]
    [pair] = identity["credentials"]
    told = dict(re.findall(r"^(\w+) = (\w+)$", made["credentials"].read_text(), re.M))
    assert told["aws_access_key_id"] == pair["accessKey"]
    assert told["aws_secret_access_key"] == pair["secretKey"]
    before = {name: path.read_text() for name, path in made.items()}
    assert all(re.fullmatch(r"\w{32}", before[name]) for name in before if "_" in name)
    assert len(set(before.values())) == len(before)
    assert not any(value in done.stdout for value in (pair["secretKey"], before["jupyter_token"]))
    again = secrets(out)
    assert again.returncode == 1
    assert f"{out} is there already" in again.stderr
    assert before == {name: path.read_text() for name, path in made.items()}


def test_secrets_are_left_out_of_images_and_of_the_repository():
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/.env", "/secrets/", "/tls/"} <= set(ignored)
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*"
