"""The image itself: built without an engine, and tried as its user."""

import re
import subprocess

import pytest

from tests.deploy.containers import Container, built

# A Debian and an environment are made for it, where nothing is kept.
pytestmark = pytest.mark.timeout(900)

LARGEST = 900e6
"""Bytes of all files; of kernels there are none here, and some 20 MB in an image with them."""


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    with built(tmp_path_factory.mktemp("image")) as image:
        yield image


def folder(path):
    """A folder for the image's user."""
    path.mkdir()
    path.chmod(0o777)
    return path


def test_what_the_image_says(image):
    settings = image.settings
    assert settings["User"] == "1000:1000"
    assert settings["StopSignal"] == "SIGTERM"
    assert settings["WorkingDir"] == "/scratch"
    assert settings["Labels"]["org.opencontainers.image.title"] == "largek_dask"
    assert settings["Healthcheck"]["Test"][:3] == ["CMD", "python", "-c"]
    assert not re.search("(?i)secret|password|token|key", " ".join(settings["Env"]))


def test_demo_as_the_images_user_where_nothing_else_can_be_written(image, tmp_path):
    scratch = folder(tmp_path / "scratch")
    mounts = {"/scratch": (scratch, "rw")}
    command = ["largek", "demo", "--out", "/scratch/demo"]
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
    assert 200e6 < image.bytes < LARGEST


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
