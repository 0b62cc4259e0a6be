"""``largek cluster slurm``: its files, and what it says to programs of SLURM that are made up."""

import json
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from largek_dask.cli import main
from largek_dask.cli.slurm import FILES

FAKE = """#!/bin/bash
# Keeps what it is asked, says what it is told, and fails where it is told to.
name=$(basename "$0")
echo "$name $*" >>"$SLURM_FAKE/calls"
for refused in "$SLURM_FAKE"/refused.*; do
    if [ -e "$refused" ] && [[ "$name $*" == *${refused##*/refused.}* ]]; then
        cat "$refused" >&2
        exit 1
    fi
done
if [ "$name" = sbatch ] && [[ "$*" == *--parsable* ]]; then
    echo $((4710 + $(grep -c parsable "$SLURM_FAKE/calls")))
elif [ -e "$SLURM_FAKE/$name.out" ]; then
    cat "$SLURM_FAKE/$name.out"
fi
"""


LAST_OF_ARRAY = {"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}
"""A job whose number is that of its array: to SLURM, "12" means all jobs of the array."""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A folder that has what programs of SLURM say and were asked."""
    folder = tmp_path / "fake"
    (folder / "bin").mkdir(parents=True)
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        (folder / "bin" / name).write_text(FAKE)
        (folder / "bin" / name).chmod(0o755)
    (folder / "calls").touch()
    monkeypatch.setenv("SLURM_FAKE", str(folder))
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
    return folder


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def calls(fake, name=""):
    return [line for line in (fake / "calls").read_text().splitlines() if line.startswith(name)]


def queue(fake, home, *lines):
    """Have ``squeue`` say jobs: ``id what state``, where what is scheduler or workers."""
    rows = [line.split() for line in lines]
    text = [f"{one}|largek-{what}:{home}|{state}" for one, what, state in rows]
    (fake / "squeue.out").write_text("\n".join(text))


def run(*arguments):
    return CliRunner().invoke(main, ["cluster", "slurm", *map(str, arguments)])


def printed(*arguments):
    """The files by name."""
    done = run("--print", "--json", *arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["files"]


def test_files_have_what_is_asked_for(home):
    given = shlex.split(
        f"--home {home}/ --workers 12 --cpus 4 --mem 1.5G --time 36h "
        "--scheduler-mem 6000M --partition day --scheduler-partition long --interface ib0 "
        "--sbatch=--constraint=icelake --sbatch=--account=a1"
    )
    files = printed(*given)
    assert not re.search(r"\{\{|\{%", "".join(files.values()))
    scheduler, workers = (
        set(re.findall(r"^#SBATCH (.*)$", files[name], re.MULTILINE)) for name in FILES[:2]
    )
    both = {"--time=2160:00", "--account=a1", "--requeue", "--open-mode=append"}
    both |= {"--constraint=icelake"}
    assert scheduler - both == {
        f"--job-name=largek-scheduler:{home}", "--ntasks=1", "--cpus-per-task=2", "--mem=6000M",
        f"--output={home}/logs/scheduler-%j.log", "--dependency=singleton",
        "--signal=B:USR1@300", "--partition=long",
    }  # fmt: skip
    assert workers - both == {
        f"--job-name=largek-workers:{home}", "--array=0-11", "--nodes=1", "--ntasks=1",
        "--cpus-per-task=4", "--mem=1536M", f"--output={home}/logs/workers-%A_%a.log",
        "--signal=B:USR1@180", "--partition=day",
    }  # fmt: skip
    assert both <= scheduler & workers
    for name in ("scheduler.sbatch", "step.sh"):
        assert '--interface "ib0"' in files[name]
    assert f"\nstep={home}/step.sh\n" in files["workers.sbatch"]


def test_both_jobs_are_submitted(fake, home):
    done = run("--home", home, "--workers", 4, "--submit")
    assert done.exit_code == 0, done.output
    scheduler, workers = f"{home}/scheduler.sbatch", f"{home}/workers.sbatch"
    assert calls(fake, "sbatch") == [
        f"sbatch --test-only {scheduler}",
        f"sbatch --test-only {workers}",
        f"sbatch --parsable {scheduler}",
        f"sbatch --parsable {workers}",
    ]
    assert "Scheduler: job 4711. Workers: job 4712, an array of 4." in done.stdout
    assert f'lk.connect("{home}/jobs/scheduler.json")\n' in done.stdout
    made = {*FILES, "jobs", "logs", "kernels", "tls"}
    assert {path.name for path in home.iterdir()} == made


# --- TLS ------------------------------------------------------------------------------------------


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_certificate_is_made_once_and_only_its_owner_reads_it(fake, home):
    home.chmod(0o755)
    done = run("--home", home, "--submit")
    assert done.exit_code == 0, done.output
    tls = home / "tls"
    assert mode(home) == mode(tls) == 0o700
    before = {path: path.read_bytes() for path in tls.iterdir()}
    assert {path.name for path in before} == {"ca.pem", "node.pem", "node.key", "tls.yaml"}
    assert {mode(path) for path in before} == {0o600}
    settings = yaml.safe_load((tls / "tls.yaml").read_text())["distributed"]["comm"]["tls"]
    assert settings["ca-file"] == str(tls / "ca.pem")
    assert settings["worker"] == {"cert": f"{tls}/node.pem", "key": f"{tls}/node.key"}
    # Somebody has opened them meanwhile.
    (tls / "node.key").chmod(0o644)
    tls.chmod(0o755)
    done = run("--home", home, "--submit")
    assert done.exit_code == 0, done.output
    assert {path: path.read_bytes() for path in tls.iterdir()} == before
    assert (mode(tls), mode(tls / "node.key")) == (0o700, 0o600)


def test_without_openssl_it_says_what_else_there_is(fake, home, monkeypatch):
    for name in ("bash", "basename", "grep", "cat"):
        (fake / "bin" / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(fake / "bin"))
    done = run("--home", home, "--submit")
    assert done.exit_code == 1
    assert "cannot start openssl" in done.stderr
    assert "--insecure" in done.stderr
    assert calls(fake, "sbatch") == []
    done = run("--home", home, "--insecure", "--submit")
    assert done.exit_code == 0, done.output
    assert "can run code as you" in done.stderr
    assert "tls" not in (home / "scheduler.sbatch").read_text()


def test_a_home_of_somebody_else_or_without_permissions_keeps_no_keys(fake, home, monkeypatch):
    monkeypatch.setattr("os.chmod", lambda *_, **__: None)
    home.chmod(0o755)
    done = run("--home", home, "--submit")
    assert done.exit_code == 1
    assert f"{home}/tls" in done.stderr

    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.chmod", refuse)
    done = run("--home", home, "--submit")
    assert done.exit_code == 1
    assert (
        "Operation not permitted; use another --home that only you can access, or --insecure"
        in done.stderr
    )
    assert calls(fake, "sbatch") == []


@pytest.mark.parametrize(
    ("given", "scheduler", "worker"),
    [
        ((), "127.0.0.1:0", "127.0.0.1:0"),
        (("--dashboard-address", ":8787"), ":8787", ":0"),
        (("--dashboard-address", "0.0.0.0:0"), "0.0.0.0:0", ":0"),
        (("--dashboard-address", "localhost:8787"), "localhost:8787", "127.0.0.1:0"),
    ],
)
def test_pages_are_on_loopback_until_they_are_opened(given, scheduler, worker, home):
    files = printed(*given)
    assert f'--dashboard-address "{scheduler}"' in files["scheduler.sbatch"]
    assert f'--dashboard-address "{worker}"' in files["step.sh"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--partition nope", "invalid partition specified: nope"),
        ("--sbatch --constraint=nope", "Invalid feature specification"),
    ],
)
def test_nothing_is_submitted_where_one_is_refused(given, said, fake, home):
    refused = f"sbatch: error: {said}\n"
    (fake / "refused.workers.sbatch").write_text(refused)
    done = run("--home", home, *shlex.split(given), "--submit")
    assert done.exit_code == 1
    assert f"sbatch failed: sbatch: error: {said}" in done.stderr
    option = given.partition(" ")[0]
    assert option in done.stderr.partition("Check")[2]
    assert "nothing was submitted" in done.stderr
    assert not [line for line in calls(fake) if "--parsable" in line]


def test_a_scheduler_without_workers_is_taken_back(fake, home):
    (fake / "refused.--parsable *workers.sbatch").write_text("sbatch: error: no more jobs\n")
    done = run("--home", home, "--submit")
    assert done.exit_code == 1
    assert "no more jobs" in done.stderr
    assert calls(fake, "scancel") == ["scancel 4711"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("--time 14m", "at least 900 s"),
        ("--time soon", "'soon'"),
        ("--mem much", "'--mem': Could not interpret 'much'"),
        ("--home here", "absolute path"),
        ("--home /nowhere/at/all", "/nowhere/at/all"),
        ("--home '/tmp/a b'", "letters, digits"),
        ("--home /tmp/a,b", "letters, digits"),
        ("--workers 0", "0 is not in the range"),
        ("--print", "give exactly one of --submit, --print"),
    ],
)
def test_bad_input(given, told, fake, home):
    done = run("--home", home, "--submit", *shlex.split(given))
    assert done.exit_code in (1, 2)
    assert told in done.stderr
    assert not [line for line in calls(fake, "sbatch") if "--parsable" in line]


@pytest.mark.parametrize("action", ["--submit --home", "--stop --home", "--scale 3 --home"])
def test_a_machine_without_slurm(action, home, monkeypatch):
    monkeypatch.setenv("PATH", str(home))
    done = run(*action.split(), home)
    assert done.exit_code == 1
    assert "sbatch is not installed on this machine" in done.stderr


def test_scale(fake, home):
    assert "does not exist" in run("--scale", 3, "--home", home).stderr
    run("--home", home, "--workers", 4, "--submit")
    queue(fake, home, *(f"4712_{i} workers RUNNING" for i in range(4)), "4711 scheduler RUNNING")
    assert run("--scale", 6, "--home", home).exit_code == 0
    assert calls(fake)[-1] == f"sbatch --parsable --array=0-1 {home}/workers.sbatch"
    queue(fake, home, *(f"4712_{i} workers RUNNING" for i in range(4)), "4720_0 workers PENDING")
    assert run("--scale", 2, "--home", home).exit_code == 0
    assert calls(fake, "scancel") == ["scancel 4712_2 4712_3 4720_0"]
    assert run("--scale", 5, "--home", home).exit_code == 0
    assert calls(fake, "scancel") == ["scancel 4712_2 4712_3 4720_0"]
    for bad in ("0", "-1"):
        assert run("--home", home, f"--scale={bad}").exit_code == 2


def test_sbatch_in_a_job_of_slurm_takes_over_nothing_of_it(fake, home, monkeypatch):
    run("--home", home, "--workers", 4, "--submit")
    (fake / "bin" / "sbatch").write_text(f"#!/bin/bash\nenv >{fake}/env\necho 1\n")
    for name in ("SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_CONF"):
        monkeypatch.setenv(name, "7")
    assert run("--home", home, "--scale", 2).exit_code == 0
    given = dict(
        line.split("=", 1) for line in (fake / "env").read_text().splitlines() if "=" in line
    )
    assert given["SLURM_CONF"] == "7"
    assert not {"SLURM_JOB_ID", "SLURM_CPUS_PER_TASK"} & set(given)


def test_scale_waits_for_a_worker_that_ends(fake, home, monkeypatch):
    run("--home", home, "--workers", 2, "--submit")
    queue(fake, home, "4712_0 workers RUNNING", "4712_1 workers COMPLETING")
    monkeypatch.setattr("time.sleep", lambda _: queue(fake, home, "4712_0 workers RUNNING"))
    told = json.loads(run("--scale", 2, "--home", home, "--json").stdout)
    assert told == {"before": 1, "changed": ["4713"]}
    assert calls(fake)[-1] == f"sbatch --parsable --array=0-0 {home}/workers.sbatch"


def test_stop_ends_the_scheduler_first(fake, home, monkeypatch):
    queue(fake, home, "4712_0 workers RUNNING", "4711 scheduler RUNNING")
    asked = []

    def sleep(_seconds):
        asked.append(calls(fake, "scancel"))
        queue(fake, home, "4712_0 workers RUNNING")

    monkeypatch.setattr("time.sleep", sleep)
    done = run("--stop", "--home", home, "--json")
    assert json.loads(done.stdout) == {"cancelled": ["4711", "4712_0"]}
    assert asked == [["scancel 4711"]]
    assert calls(fake, "scancel") == ["scancel 4711", "scancel 4712_0"]


# --- the scripts ----------------------------------------------------------------------------------


def script(home, name, *arguments):
    """One of the files, written and looked through by bash."""
    path = home / name
    path.write_text(printed("--home", home, *arguments)[name])
    subprocess.run(["bash", "-n", path], check=True)
    return path


def function(path, *names):
    """Functions of a script."""
    text = path.read_text()
    return "\n".join(
        re.search(rf"^{name}\(\) \{{(?: [^\n]*\}}$|.*?^\}}$)", text, re.M | re.S)[0]
        for name in names
    )


def bash(code, **env):
    """What a script says; its Python is that of the tests."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, **env}
    done = subprocess.run(["bash", "-c", code], env=env, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("0:08", 8),
        ("59:09", 59 * 60 + 9),
        ("11:08:09", 11 * 3600 + 8 * 60 + 9),
        ("1-02:00:00", 26 * 3600),
        ("UNLIMITED", 31_536_000),
        ("", 31_536_000),
    ],
)
def test_time_that_is_left(told, seconds, fake, home):
    (fake / "squeue.out").write_text(told)
    code = function(script(home, "step.sh"), "time_left") + "\ntime_left"
    assert bash(code, **LAST_OF_ARRAY) == str(seconds)
    assert "--job=12_3 " in calls(fake)[-1]


def test_one_job_of_an_array_is_queued_again_and_not_all(fake, home):
    (home / "step.sh").touch()
    for name, code in (("srun", "exit 75"), ("sleep", "exit 0")):
        (fake / "bin" / name).write_text(f"#!/bin/bash\n{code}\n")
        (fake / "bin" / name).chmod(0o755)
    # The step ends before the script looks at it.
    slow = "".join(
        f"{name}() {{ /bin/sleep 0.2; builtin {name} $*; }}\n" for name in ("kill", "wait")
    )
    (fake / "slow").write_text(slow)
    code = f"bash {script(home, 'workers.sbatch')}"
    told = bash(code, SLURM_CPUS_PER_TASK="8", BASH_ENV=str(fake / "slow"), **LAST_OF_ARRAY)
    assert "SLURM queues this job again" in told
    assert calls(fake, "scontrol") == ["scontrol requeue 12_3"]


def test_why_a_worker_waits(fake, home):
    code = function(script(home, "step.sh"), "said", "why_not", "other_folder")
    file = home / "jobs" / "scheduler.json"
    names = f"file={file}; version=1.2.3; LARGEK_HOME={home}\n{code}\n"
    assert bash(f"{names}why_not") == f"{file} does not exist yet"
    file.parent.mkdir()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        said = {"address": f"tcp://{address}", "slurm_job": "4711", "version": "1.2.3"}
        file.write_text(json.dumps(said, indent=2))
        assert (
            bash(f"{names}why_not") == f"there is no answer from {address}, the address in {file}"
        )
        listening.listen()
        assert bash(f"{names}why_not") == ""
        file.write_text(json.dumps(said | {"version": "1.2.4"}, indent=2))
        assert "has largek_dask 1.2.4, but this node has 1.2.3" in bash(f"{names}why_not")
    (fake / "squeue.out").write_text("4711\n")
    assert bash(f"{names}other_folder") == ""
    (fake / "squeue.out").write_text("4713\n")
    assert "this node sees another folder" in bash(f"{names}other_folder")
    assert f"--name=largek-scheduler:{home}" in calls(fake)[-1]


def test_a_worker_that_does_not_end_when_it_is_asked_to(home):
    code = function(script(home, "step.sh"), "end_in_time")
    # Time goes by quicker here.
    code += "\nlooked=0\nsleep() { looked=$((looked + 1)); SECONDS=$((SECONDS + 4)); }\n"
    code += "tail -f /dev/null & worker=$!\n"
    assert bash(f"{code} end_in_time $worker; wait $worker; echo $? $looked") == "137 3"
    ended = "kill $worker; wait $worker; end_in_time $worker; echo $looked"
    assert bash(f"{code} {ended}") == "0"


@pytest.mark.parametrize("name", ["scheduler.sbatch", "step.sh"])
def test_a_python_without_the_package(name, home):
    (home / "bin").mkdir()
    (home / "bin" / "python3").write_text("#!/bin/sh\nexit 1\n")
    (home / "bin" / "python3").chmod(0o755)
    (home / "site.env").write_text(f"PATH={home}/bin:$PATH\n")
    path = script(home, name)
    told = bash(f"bash {path}", LARGEK_HOME=str(home))
    assert f"{home}/bin/python3 cannot import largek_dask: load it in {home}/site.env" in told


def test_a_node_that_does_not_see_the_folder(home):
    path = script(home, "scheduler.sbatch")
    (home / "jobs").touch()
    assert "use a folder of yours that all nodes share" in bash(f"bash {path}")
    path = script(home, "workers.sbatch")
    assert f"{home}/step.sh does not exist here" in bash(f"bash {path}")
