"""`deploy/kubernetes`: each overlay, by Kubernetes' schemas and by how its parts fit together.

There is no cluster here: what a server would refuse beyond its schema is looked for by `faults`.
"""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from largek_dask import config
from tests.deploy.running import DEPLOY, certificate_folder
from tests.helpers.needs import program

FOLDER = DEPLOY / "kubernetes"
OVERLAYS = ("local-pvc", "s3", "tls")
GIVEN = {"Secret": {"s3", "tls"}, "ConfigMap": set()}
"""What users make themselves, as the comments of the overlays say."""
CLIENT = {"largek-client": "true"}
"""Labels by which a pod of the namespace is a user, as the README says."""
STRANGER = {"app": "other"}
PORTS = {"dask": 8786, "dashboard": 8787}
"""What users come to."""
ANY = 40_123
"""Some port that Dask has drawn."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built():
    """The documents of each overlay, as `kubectl apply -k` would send them."""
    kubectl = program("kubectl", "the extra deploy")
    found = {}
    for name in OVERLAYS:
        done = subprocess.run(
            [kubectl, "kustomize", str(FOLDER / "overlays" / name)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        found[name] = list(yaml.safe_load_all(done.stdout))
    return found


def of_kind(documents, *kinds):
    return [one for one in documents if one["kind"] in kinds]


def pods(documents):
    """Each workload's name, labels of its pods, and their specification."""
    for one in of_kind(documents, "Deployment", "StatefulSet"):
        template = one["spec"]["template"]
        yield one["metadata"]["name"], template["metadata"]["labels"], template["spec"]


def meets(selector, labels):
    """Whether a label selector takes these labels."""
    wanted = selector.get("matchLabels", {})
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    for rule in selector.get("matchExpressions", ()):
        assert rule["operator"] == "In"
        if labels.get(rule["key"]) not in rule["values"]:
            return False
    return True


def faults(documents):
    """What does not fit together, in words."""
    found = []
    for name, _, spec in pods(documents):
        found += [f"{name}: {text}" for text in pod_faults(spec, documents)]
    found += selector_faults(documents)
    found += policy_faults(documents)
    return found


def pod_faults(spec, documents):
    """Of one pod: mounts, names, limits, probes, security."""
    security = spec.get("securityContext", {})
    if not security.get("runAsNonRoot") or not security.get("runAsUser"):
        yield "may run as root"
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "has no seccomp profile"
    if spec.get("automountServiceAccountToken") is not False:
        yield "has a token"
    if spec.get("terminationGracePeriodSeconds", 30) <= config.get("service.shutdown-seconds"):
        yield "is killed before its last checkpoint"
    volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
    for volume in volumes.values():
        if "emptyDir" in volume and not (volume["emptyDir"] or {}).get("sizeLimit"):
            yield f"scratch {volume['name']} has no limit"
    for container in spec["containers"]:
        yield from container_faults(container, volumes)
        for source in container.get("envFrom", ()):
            yield from unknown("ConfigMap", source.get("configMapRef"), documents)
            yield from unknown("Secret", source.get("secretRef"), documents)
    for volume in volumes.values():
        sources = [volume, *volume.get("projected", {}).get("sources", ())]
        for source in sources:
            yield from unknown("ConfigMap", source.get("configMap"), documents)
            yield from unknown("Secret", source.get("secret"), documents)
            claim = source.get("persistentVolumeClaim")
            yield from unknown(
                "PersistentVolumeClaim", claim and {"name": claim["claimName"]}, documents
            )
    yield from unknown("ServiceAccount", {"name": spec["serviceAccountName"]}, documents)


def unknown(kind, reference, documents):
    """A fault if nothing of this kind and name is made, by the overlay or by its user."""
    if reference is None:
        return
    name = reference.get("name") or reference.get("secretName")
    made = {one["metadata"]["name"] for one in of_kind(documents, kind)} | GIVEN.get(kind, set())
    if name not in made:
        yield f"there is no {kind} {name}"


def container_faults(container, volumes):
    security = container.get("securityContext", {})
    if security.get("allowPrivilegeEscalation") is not False:
        yield "may gain privileges"
    if security.get("readOnlyRootFilesystem") is not True:
        yield "may write its root"
    if security.get("capabilities", {}).get("drop") != ["ALL"]:
        yield "has capabilities"
    resources = container.get("resources", {})
    limit = resources.get("limits", {}).get("memory")
    if limit is None or limit != resources.get("requests", {}).get("memory"):
        yield "asks for another memory than its limit"
    ports = {port["name"] for port in container["ports"]}
    for probe in ("livenessProbe", "readinessProbe"):
        if probe not in container:
            yield f"has no {probe}"
        elif container[probe]["httpGet"]["port"] not in ports:
            yield f"{probe}: no port {container[probe]['httpGet']['port']}"
    writable = set()
    for mount in container.get("volumeMounts", ()):
        if mount["name"] not in volumes:
            yield f"mount {mount['name']} has no volume"
        if not mount.get("readOnly"):
            writable.add(mount["mountPath"])
    arguments = container["args"]
    for flag in ("--local-directory", "--largek-store"):
        for given in (a.partition("=")[2] for a in arguments if a.startswith(flag + "=")):
            if not any(given == path or given.startswith(path + "/") for path in writable):
                yield f"{flag}={given} cannot be written"
    numbers = {str(port["containerPort"]) for port in container["ports"]}
    for flag in ("--port", "--dashboard-address"):
        for given in (a.rpartition("=")[2] for a in arguments if a.startswith(flag + "=")):
            if given.lstrip(":") not in numbers:
                yield f"{flag}={given} is no port of the container"
    environment = {one["name"]: one["value"] for one in container.get("env", ())}
    store = environment.get("DASK_LARGEK__STORE")
    if store is not None:
        on = [path for path in writable if store.startswith(f"{path}/")]
        if not on:
            yield f"the store {store} is not mounted"
        # No output of a job may overlap the store.
        elif any(store == f"{path}/run1" for path in on):
            yield f"beside the store {store} there is no room for outputs"
    folder = environment.get("DASK_CONFIG")
    if folder not in {mount["mountPath"] for mount in container.get("volumeMounts", ())}:
        yield f"DASK_CONFIG {folder} is not mounted"


def selector_faults(documents):
    """Selectors that take no pod or another's, and names and ports that lead nowhere."""
    running = list(pods(documents))
    for one in of_kind(documents, "Deployment", "StatefulSet"):
        labels = one["spec"]["template"]["metadata"]["labels"]
        if not meets(one["spec"]["selector"], labels):
            yield f"{one['metadata']['name']} selects other pods than its own"
    hosts = {}
    for one in of_kind(documents, "Service"):
        name, spec = one["metadata"]["name"], one["spec"]
        taken = [s for _, labels, s in running if meets({"matchLabels": spec["selector"]}, labels)]
        if len(taken) != 1:
            yield f"service {name} selects {len(taken)} workloads"
            continue
        [container] = taken[0]["containers"]
        ports = {port["name"] for port in container["ports"]}
        for port in spec["ports"]:
            if port["targetPort"] not in ports:
                yield f"service {name}: no port {port['targetPort']}"
        hosts[name] = {str(port["port"]) for port in spec["ports"]}
    for one in of_kind(documents, "StatefulSet"):
        if one["spec"]["serviceName"] not in hosts:
            yield f"no service {one['spec']['serviceName']}"
    for one in of_kind(documents, "PodDisruptionBudget"):
        taken = [name for name, labels, _ in running if meets(one["spec"]["selector"], labels)]
        if taken != ["worker"]:
            yield f"the budget of disruptions is for {taken}"
    for name, _, spec in running:
        for given in spec["containers"][0]["args"]:
            for host, port in re.findall(r"^(?:tcp|tls)://([^:]+):(\d+)$", given):
                if port not in hosts.get(host, ()):
                    yield f"{name}: nobody is at {given}"
    if len({one["metadata"].get("namespace") for one in documents} - {None}) > 1:
        yield "more than one namespace"
    for one in of_kind(documents, "Deployment"):
        if one["spec"]["replicas"] != 1 or one["spec"]["strategy"]["type"] != "Recreate":
            yield "two schedulers at a time on one store"


def policy_faults(documents):
    """Network policies: nothing is reached, but the scheduler's ports by clients, and so on."""
    policies = of_kind(documents, "NetworkPolicy")
    if not policies:
        return
    running = list(pods(documents))
    closed = [
        one
        for one in policies
        if one["spec"]["podSelector"] == {}
        and set(one["spec"]["policyTypes"]) == {"Ingress", "Egress"}
        and "ingress" not in one["spec"]
        and "egress" not in one["spec"]
    ]
    if not closed:
        yield "nothing is closed by default"
    there = [CLIENT, *(labels for _, labels, _ in running)]
    for one in policies:
        name, spec = one["metadata"]["name"], one["spec"]
        if not any(meets(spec["podSelector"], labels) for labels in there):
            yield f"policy {name} is for no pod"
        ports = [p["port"] for rule in spec.get("ingress", ()) for p in rule.get("ports", ())]
        for _, labels, pod in running:
            known = {port["name"] for port in pod["containers"][0]["ports"]}
            if meets(spec["podSelector"], labels) and set(ports) - known:
                yield f"policy {name}: no port {sorted(set(ports) - known)}"
        for rule in spec.get("ingress", ()):
            for source in rule.get("from", [{}]):
                wanted = source.get("podSelector", {})
                if not wanted:
                    yield f"policy {name} lets everybody in"
    yield from way_faults(policies, running)


def lets(policies, way, mine, other, port):
    """Whether policies of pods with labels ``mine`` let them have a connection.

    ``way`` is "Ingress", from the pods ``other``, or "Egress", to them; ``port`` is the names and
    numbers of the one that is asked for. Pods that no policy is for may do what they like.
    """
    rules, peers = {"Ingress": ("ingress", "from"), "Egress": ("egress", "to")}[way]
    specs = [one["spec"] for one in policies if way in one["spec"]["policyTypes"]]
    specs = [spec for spec in specs if meets(spec["podSelector"], mine)]
    return not specs or any(
        any(set(peer) == {"podSelector"} and meets(peer["podSelector"], other) for peer in found)
        and (not rule.get("ports") or any(one["port"] in port for one in rule["ports"]))
        for spec in specs
        for rule in spec.get(rules, ())
        for found in [rule.get(peers, ())]
    )


def way_faults(policies, running):
    """Who does not reach whom, and who does and should not: both ends have to let it be."""

    def reaches(source, target, port):
        pairs = (("Egress", source, target), ("Ingress", target, source))
        return all(lets(policies, way, mine, other, port) for way, mine, other in pairs)

    pods_of = {name: labels for name, labels, _ in running}
    scheduler = pods_of["scheduler"]
    for name, number in PORTS.items():
        if not reaches(CLIENT, scheduler, {name, number}):
            yield f"clients do not reach the scheduler's port {name}"
        if reaches(STRANGER, scheduler, {name, number}):
            yield f"everybody reaches the scheduler's port {name}"
    for source in pods_of:
        for target in pods_of:
            if not reaches(pods_of[source], pods_of[target], {ANY}):
                yield f"{source} does not reach {target}"
        if reaches(CLIENT, pods_of[source], {ANY}):
            yield f"clients reach any port of {source}"


# --- what is there --------------------------------------------------------------------------------


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_parts_fit_together(overlay, built):
    documents = built[overlay]
    assert faults(documents) == []
    kinds = {one["kind"] for one in documents}
    assert kinds >= {
        "Namespace", "ServiceAccount", "ConfigMap", "Service", "Deployment", "StatefulSet",
        "PodDisruptionBudget", "NetworkPolicy",
    }  # fmt: skip
    assert "Secret" not in kinds


def command(documents, part):
    [arguments] = [s["containers"][0]["args"] for name, _, s in pods(documents) if name == part]
    return arguments


def test_overlays_differ_in_what_they_say(built, tmp_path):
    """The store is a volume or S3; TLS is everywhere or nowhere."""
    stores = {}
    for name, documents in built.items():
        [scheduler] = [s for part, _, s in pods(documents) if part == "scheduler"]
        [container] = scheduler["containers"]
        stores[name] = {one["name"]: one["value"] for one in container["env"]}.get(
            "DASK_LARGEK__STORE"
        )
    assert stores == {"local-pvc": "/store/jobs", "s3": None, "tls": None}
    [settings] = [
        one["data"] for one in of_kind(built["s3"], "ConfigMap") if one["metadata"]["name"] == "s3"
    ]
    assert settings["DASK_LARGEK__STORE"].startswith("s3://")
    plain, encrypted = built["s3"], built["tls"]
    assert [*command(plain, "scheduler"), "--protocol=tls"] == command(encrypted, "scheduler")
    assert [a.replace("tcp://", "tls://") for a in command(plain, "worker")] == command(
        encrypted, "worker"
    )
    folder = certificate_folder()
    for _, _, spec in pods(encrypted):
        [mounted] = [
            m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "certificates"
        ]
        assert mounted["mountPath"] == folder
        [secret] = [v for v in spec["volumes"] if v["name"] == "certificates"]
        assert secret["secret"]["defaultMode"] == 0o440


@pytest.mark.parametrize("version", ["oldest", "newest"])
def test_schemas_of_kubernetes(version, built, tmp_path):
    """The oldest and the newest version that the validator knows."""
    validate = program("kubernetes-validate", "the extra deploy")
    python = Path(validate).parent / "python"
    code = "import kubernetes_validate as k, os; print(os.path.dirname(k.__file__))"
    told = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    schemas = Path(told.stdout.strip()) / "kubernetes-json-schema"
    known = sorted(
        {tuple(map(int, re.findall(r"\d+", path.name))) for path in schemas.glob("v*-local-strict")}
    )
    chosen = ".".join(map(str, known[0 if version == "oldest" else -1]))
    for name, documents in built.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(documents))
    files = sorted(map(str, tmp_path.glob("*.yaml")))
    done = subprocess.run(
        [validate, "--strict", "-k", chosen, *files], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout + done.stderr


@pytest.mark.parametrize("overlay", ["s3", "tls"])
def test_storage_is_reached_by_all_who_read_and_write_there(overlay, built):
    """By HTTPS, and nothing but that outside: scheduler, workers, and users who bring rows."""
    ways = {}
    for one in of_kind(built[overlay], "NetworkPolicy"):
        for rule in one["spec"].get("egress", ()):
            if any("ipBlock" in peer for peer in rule["to"]):
                assert [port["port"] for port in rule["ports"]] == [443]
                ways[one["metadata"]["name"]] = one["spec"]["podSelector"]
    for labels in (CLIENT, {"largek-part": "scheduler"}, {"largek-part": "worker"}):
        assert any(meets(selector, labels) for selector in ways.values()), labels
    assert not any(meets(selector, STRANGER) for selector in ways.values())
