"""The image itself: built without an engine, tried as its user, and composed."""

import re
import subprocess
from contextlib import ExitStack, contextmanager

import pytest

from tests.deploy import composed
from tests.deploy.containers import Container, built, called
from tests.deploy.engine import Engine
from tests.deploy.running import DEPLOY
from tests.helpers.needs import program

# A Debian and an environment are made for it, where nothing is kept.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LARGEST = 900e6
"""Bytes of all files of an image with its kernels."""
KERNELS = 40e6
"""What they may take of it: there are none here, as compiling them takes minutes."""


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    with built(tmp_path_factory.mktemp("image")) as image:
        yield image


def folder(path):
    """A folder for the image's user."""
    path.mkdir()
    path.chmod(0o777)
    return path


def test_demo_as_the_images_user_where_nothing_else_can_be_written(image, tmp_path):
    scratch = folder(tmp_path / "scratch")
    mounts = {"/scratch": (scratch, "rw")}
    # Fewer patches and codewords need fewer kernels, which are compiled here.
    command = ["largek", "demo", "--out", "/scratch/demo", "--stride", "8", "-k", "12"]
    code, printed = Container(image, command, mounts=mounts).run(seconds=600)
    assert code == 0, printed
    assert (scratch / "demo").stat().st_uid == 1000
    # It is what the container is: no root, no capability, nothing to be written.
    ask = (
        "import os; open('/scratch/x', 'w'); open('/tmp/x', 'w'); print(os.getuid(), os.getgid());"
        "print([line for line in open('/proc/self/status') if line.startswith('Cap')]);"
        "open('/home/largek/x', 'w')"
    )
    code, printed = Container(image, ["python", "-c", ask], mounts=mounts).run()
    assert code == 1
    assert "1000 1000" in printed
    assert printed.count(r":\t0000000000000000\n") == 5
    assert "Read-only file system: '/home/largek/x'" in printed


def test_what_is_left_out_is_not_missed(image):
    """Rows of each kind that the image is for are written and read again by what does that."""
    use = (
        "import h5py, pandas, prometheus_client, pyarrow.dataset, s3fs, sklearn.cluster, sys;"
        "frame = pandas.DataFrame({'a': [1.0, 2.0]}); frame.to_parquet('/tmp/x.parquet');"
        "assert pandas.read_parquet('/tmp/x.parquet').equals(frame);"
        "assert pyarrow.dataset.dataset('/tmp/x.parquet').count_rows() == 2;"
        "h5py.File('/tmp/x.h5', 'w')['a'] = [1, 2];"
        "import largek_dask as lk; lk.ingest('/tmp/x.parquet', '/tmp/x.zarr', progress=False);"
        "print('all there')"
    )
    code, printed = Container(image, ["python", "-c", use]).run(seconds=300)
    assert (code, printed.splitlines()[-1:]) == (0, ["all there"]), printed


def test_size(image):
    assert 200e6 < image.bytes < LARGEST - KERNELS


def test_no_compiler_and_nothing_of_whoever_built_it(image):
    names = {path.name for place in ("bin", "usr/bin", "usr/local/bin", "opt/largek/bin")
             for path in (image.root / place).iterdir()}  # fmt: skip
    assert "setpriv" in names
    assert not {
        name
        for name in names
        if re.fullmatch(r"(.*-)?(gcc|g\+\+|cc|c\+\+|clang|ld|as)(-\d+)?", name)
    }
    assert not (image.root / "source").exists()
    assert not list((image.root / "root").glob(".cache/*"))
    for place in ("opt", "home", "scratch", "store", "etc", "root"):
        for path in (image.root / place).rglob("*"):
            assert path.name not in (".env", ".git", "credentials", "secrets"), path
            # (Tornado ships one, for its tests.)
            assert "site-packages" in path.parts or not path.name.endswith(".key"), path


def test_the_user_can_write_nothing_of_the_image(image):
    """But scratch, a store where none is mounted, a home, and what any Debian has for all."""
    writable = ["-user", "1000", "-o", "-group", "1000", "-o", "-perm", "-0002"]
    # What is in /dev is made by engines.
    command = ["find", ".", "-xdev", "-path", "./dev", "-prune", "-o", "!", "-type", "l"]
    command += ["(", *writable, ")", "-print"]
    done = subprocess.run(command, cwd=image.root, capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    ours = {"./scratch", "./store", "./home/largek"}
    assert ours <= found
    assert found - ours <= {"./tmp", "./var/tmp", "./run/lock"}


# --- docker-compose.yml, run ----------------------------------------------------------------------

CLIENT = """
import os, sys, time
import numpy as np
import largek_dask as lk
from largek_dask.driver.storage import Folder

steps, folder = int(sys.argv[1]), sys.argv[2]
x = np.random.default_rng(0).standard_normal((3_000, 4)).astype(np.float32)
lk.ingest(x, f"{folder}/x.zarr", chunk_rows=500, progress=False)
# It takes as many steps as it is given, so that it is not over too soon.
options = {"algorithm": lk.MiniBatch(), "tol": 0.0, "max_iter": steps}
with lk.connect(os.environ["DASK_SCHEDULER_ADDRESS"], timeout="60s") as service:
    job = service.submit(f"{folder}/x.zarr", n_clusters=50, output=f"{folder}/model", **options)
    seen = None
    while (status := job.status())["state"] not in ("finished", "failed", "cancelled"):
        if status.get("step") != seen:
            seen = status.get("step")
            print("step", seen, time.strftime("%X"), flush=True)
        time.sleep(0.05)
    print("digest", job.result("60s").digest(), flush=True)
kept = Folder(f"{folder}/model").sub("checkpoints").names()
print("kept", len(kept), flush=True)
alone = lk.KMeans(50, random_state=0, **options).fit(f"{folder}/x.zarr")
print("alone", alone.model_.digest(), flush=True)
"""

QUICK = {
    "DASK_LARGEK__DATA__READ_CHUNK_BYTES": "1",
    "DASK_LARGEK__SERVICE__BEAT_SECONDS": "0.3",
    "DASK_LARGEK__SERVICE__PATIENCE_SECONDS": "1.5",
    "DASK_LARGEK__CHECKPOINTS__SECONDS": "0",
}
"""Several chunks, short waits of the service, and no step without what the store has to keep."""


@pytest.fixture(scope="module")
def engine(image, tmp_path_factory):
    place = tmp_path_factory.mktemp("composed")
    called(DEPLOY / "compose" / "secrets.sh", place / "secrets")
    with ExitStack() as stack:
        yield Engine(image, place, stack, QUICK)


class Notebook:
    """What somebody does in JupyterLab, without it: submit a job and look at it."""

    def __init__(self, engine, process, log):
        self.engine, self.process, self.log = engine, process, log

    @classmethod
    @contextmanager
    def submitting(cls, engine, steps, name):
        log = engine.place / f"client-{name}.log"
        command = ["python", "-c", CLIENT, str(steps), f"s3://largek/{name}"]
        with engine.beside("jupyter", command, log) as process:
            yield cls(engine, process, log)

    def told(self, word):
        text = self.log.read_text()
        assert self.process.poll() in (None, 0), f"{text}\n{self.engine.tails()}"
        return re.findall(rf"^{word} (\w+)", text, re.M)

    def goes_on(self):
        """Wait until some more steps have been seen; none of them may be the last one."""
        seen = len(self.told("step"))
        self.engine.wait(lambda: len(self.told("step")) >= seen + 2, "more steps", 240)
        assert not self.told("digest"), "the job was over before anything happened to it"

    def digest(self):
        """Wait for the end: the job's model has the bits of a fit in one process."""
        self.engine.wait(lambda: self.told("alone"), "a digest", 240)
        assert self.process.wait(60) == 0
        assert self.told("digest") == self.told("alone")
        # One record and its arrays: what was removed is gone, though the store keeps folders.
        assert self.told("kept") == ["2"]
        return self.told("digest")[0]


def test_composed__each_service_killed_in_turn(engine):
    version = called(program("weed", "the extra test"), "version")
    tag = engine.document["services"]["store"]["image"].partition(":")[2]
    assert f" {tag} " in version, "another SeaweedFS than that of the file"
    engine.up("worker")
    assert list(engine.replicas) == ["store", "scheduler", "worker"]
    assert len(engine.replicas["worker"]) == int(composed.example()["LARGEK_WORKERS"]) > 1
    with Notebook.submitting(engine, 30, "first") as notebook:
        for name in ("store", "scheduler", "worker"):
            notebook.goes_on()
            engine.replicas[name][0].kill()
            # The other worker goes on meanwhile.
            if name != "worker":
                engine.wait_healthy(name)
        notebook.goes_on()
        notebook.digest()
    engine.wait_healthy("worker")
