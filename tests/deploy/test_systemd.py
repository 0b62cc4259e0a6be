"""`deploy/systemd`: units that systemd takes without a word, and what their commands do."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import largek_dask as lk
from tests.deploy.running import DEPLOY, end, free_port, process, quick_environment
from tests.helpers.checks import eventually
from tests.helpers.needs import program

pytestmark = pytest.mark.slow

FOLDER = DEPLOY / "systemd"
SCHEDULER, WORKER = "largek-scheduler.service", "largek-worker@.service"
EXPOSURE = 30
"""The most that `systemd-analyze security` may find, in tenths."""


def settings(unit):
    """The lines ``Name=value`` of a unit, those that are continued as one, and without comments."""
    text = (FOLDER / unit).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return [tuple(line.split("=", 1)) for line in lines]


def value(unit, name):
    [found] = [value for key, value in settings(unit) if key == name]
    return found


def example():
    """The variables of ``largek.env.example``, also those that are commented out."""
    text = (FOLDER / "largek.env.example").read_text()
    return dict(re.findall(r"^#?([A-Z_]+)=(.*)$", text, re.M))


def copied(folder):
    """The units in a folder, with a program that is there."""
    for path in FOLDER.iterdir():
        text = path.read_text().replace("/opt/largek/bin/dask", sys.executable)
        (folder / path.name).write_text(text)
    worker = folder / "largek-worker@1.service"
    shutil.copy(folder / WORKER, worker)
    return [str(folder / SCHEDULER), str(worker), str(folder / "largek.target")]


def verified(units):
    """What is wrong with units: ``systemd-analyze verify`` ends with 0 after many a warning."""
    command = [program("systemd-analyze", "Debian's systemd"), "verify", "--man=no", *units]
    done = subprocess.run(command, capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if "largek" in line]
    return ours or ([] if done.returncode == 0 else [done.stderr])


def exposed(unit):
    command = [program("systemd-analyze", "Debian's systemd"), "security", "--offline=true"]
    command += [f"--threshold={EXPOSURE}", "--no-pager", unit]
    return subprocess.run(command, capture_output=True, text=True).returncode != 0


def test_units_are_taken_without_a_word(tmp_path):
    units = copied(tmp_path)
    assert verified(units) == []
    assert not any(exposed(unit) for unit in units[:2])


def begun_at_boot(root):
    """Units that systemd would start with a machine whose files are below ``root``."""
    units = root / "etc/systemd/system"
    found, left = set(), ["multi-user.target"]
    while left:
        name = left.pop()
        left += [link.name for link in units.glob(f"{name}.wants/*")]
        file = units / re.sub("@.*[.]", "@.", name)
        if name not in found and file.exists():
            found.add(name)
            for key, wanted in settings(file.name):
                left += wanted.split() if key == "Wants" else []
    return found


@pytest.mark.parametrize("runs", ["scheduler", "worker"])
def test_the_readme__what_it_enables_is_there_after_a_boot(runs, tmp_path):
    """Where there are workers only, too; and there is no scheduler there."""
    text = (DEPLOY / "README.md").read_text().split("\n## systemd\n")[1].split("\n## ")[0]
    lines = re.findall(r"^systemctl (enable) --now ((?:[\w@.-]+ )+) *# where (.*)$", text, re.M)
    assert len(lines) == 2
    [(verb, units)] = [(verb, units.split()) for verb, units, where in lines if runs in where]
    folder = tmp_path / "etc/systemd/system"
    shutil.copytree(FOLDER, folder)
    systemctl = program("systemctl", "Debian's systemd")
    subprocess.run([systemctl, f"--root={tmp_path}", verb, *units], check=True, capture_output=True)
    there = begun_at_boot(tmp_path)
    wanted = [SCHEDULER] if runs == "scheduler" else [WORKER.replace("@", f"@{n}") for n in (1, 2)]
    assert there == {"largek.target", *wanted}
    # And is stopped and started by the target.
    assert {value(re.sub("@.*[.]", "@.", unit), "PartOf") for unit in wanted} == {"largek.target"}


# --- their commands, run by hand ------------------------------------------------------------------


def started(unit, variables, root):
    """The command and environment of a unit as systemd has them; its folders below ``root``."""
    text = value(unit, "ExecStart").replace("%H-%i", "here-1").replace("%i", "1")
    text = text.replace("/var/", f"{root}/var/")
    for name, given in variables.items():
        text = text.replace(f"${{{name}}}", given)
    assert "$" not in text
    assert "%" not in text
    dask, *arguments = shlex.split(text)
    assert dask == "/opt/largek/bin/dask"
    pairs = " ".join(given for key, given in settings(unit) if key == "Environment")
    mine = dict(pair.split("=", 1) for pair in pairs.replace("/var/", f"{root}/var/").split())
    assert {"HOME", "XDG_CACHE_HOME", "OPENBLAS_NUM_THREADS"} <= set(mine)
    # Kernels that are compiled already are taken from where they are.
    mine["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    environment = quick_environment(**mine, DASK_LARGEK__CHECKPOINTS__SECONDS="30")
    return [sys.executable, "-m", "dask", *arguments], environment


@pytest.mark.usefixtures("chunks_as_stored")
def test_commands_of_the_units__ended_in_the_middle_and_started_again(tmp_path):
    root = tmp_path
    port = str(free_port())
    variables = {
        **example(),
        "LARGEK_STORE": f"{root}/var/lib/largek/jobs",
        "LARGEK_PORT": port,
        "LARGEK_DASHBOARD": "127.0.0.1:0",
        "LARGEK_SCHEDULER": f"tcp://127.0.0.1:{port}",
        "LARGEK_WORKER_THREADS": "1",
    }
    (root / "var/lib/largek").mkdir(parents=True)
    x = np.random.default_rng(0).standard_normal((3_000, 4)).astype(np.float32)
    lk.ingest(x, str(root / "x.zarr"), chunk_rows=500, progress=False)
    # It takes as many steps as it is given, so that it is not over too soon.
    options = {"algorithm": lk.MiniBatch(), "tol": 0.0, "max_iter": 200}
    logs = [root / "scheduler.log", root / "worker.log"]
    commands = [started(unit, variables, root) for unit in (SCHEDULER, WORKER)]
    with (
        process(commands[0][0], logs[0], commands[0][1]) as scheduler,
        process(commands[1][0], logs[1], commands[1][1]) as worker,
    ):
        with lk.connect(variables["LARGEK_SCHEDULER"], timeout="60s") as service:
            job = service.submit(
                str(root / "x.zarr"), n_clusters=50, output=str(root / "out"), **options
            )
            eventually(lambda: job.status().get("step", 0) >= 3, "three steps")
            limit = next(iter(service.client.scheduler_info()["workers"].values()))["memory_limit"]
            assert end(scheduler) == 0
        events = "".join(path.read_text() for path in (root / "out" / "events").iterdir())
        assert '"event":"interrupted"' in events
        assert worker.wait(120) is not None
    # Of the machine's memory here, of LimitRSS under systemd.
    from distributed.system import MEMORY_LIMIT

    assert limit == int(0.9 * MEMORY_LIMIT)
    with (
        process(commands[0][0], logs[0], commands[0][1]),
        process(commands[1][0], logs[1], commands[1][1]),
        lk.connect(variables["LARGEK_SCHEDULER"], timeout="60s") as service,
    ):
        model = service.job(job.id).result("120s")
    km = lk.KMeans(50, random_state=0, **options).fit(str(root / "x.zarr"))
    assert model.digest() == km.model_.digest()


def test_a_limit_of_the_resident_set_is_what_dask_takes_for_its_memory():
    """Else ``LimitRSS`` in the worker's unit would mean nothing."""
    code = "from distributed.system import MEMORY_LIMIT; print(MEMORY_LIMIT)"
    limited = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_RSS, (3 << 28, 3 << 28)); "
        f"os.execv(sys.executable, [sys.executable, '-c', {code!r}])"
    )
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True)
    assert done.stdout.strip() == str(3 << 28), done.stderr
