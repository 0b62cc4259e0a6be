"""Real schedulers and workers, struck by each kind of fault: the model is that of a clean run.

``python -m tests.faults`` injects all faults into all algorithms, at all moments. By default one
worker is killed here; ``test_stores.py`` has schedulers crash at every moment, in this process.
"""

from __future__ import annotations

import dataclasses

import pytest

from largek_dask import fault_injection
from tests.faults.broadcasts import killed_in_broadcasts, patient_rig
from tests.faults.cases import make_cases
from tests.faults.catalogue import FAULTS, KillNanny, KillScheduler, KillWorker, TermWorker
from tests.faults.long import adaptive
from tests.faults.moments import Moment, visited
from tests.faults.rig import Rig
from tests.faults.strikes import strike

ALL = ("KillWorker",)
"""Faults injected into every algorithm; each other fault gets one algorithm, in turn."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return make_cases(tmp_path_factory.mktemp("rows"))


STALL_SECONDS = 20.0
"""A wait for Dask's own timeouts is one of 30 s at least, all others are of a few seconds."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with Rig(tmp_path_factory.mktemp("rig")) as rig:
        yield rig


def chosen():
    """Return every fault with its algorithms."""
    names = ["lloyd", "nmbatch", "nmbatch-sparse", "truncated", "vrkm"]
    for number, fault in enumerate(FAULTS):
        few = names if fault.__name__ in ALL else [names[number % len(names)]]
        for name in few:
            yield pytest.param(fault, name, id=f"{fault.__name__}-{name}")


@pytest.mark.slow
@pytest.mark.parametrize(("fault_class", "name"), list(chosen()))
def test_a_struck_job_gives_the_model_of_a_clean_one(rig, cases, tmp_path, fault_class, name):
    fault = fault_class()
    try:
        with rig.connected() as service:
            strike(rig, service, cases[name], fault, tmp_path / "out").check(fault)
    except BaseException:
        print(rig.logs())
        raise


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        KillWorker(Moment("after", "labels", "worker", from_step=0)),
        KillScheduler(Moment("before", "publish", from_step=0)),
    ],
    ids=str,
)
def test_a_job_that_is_struck_at_its_end(rig, cases, tmp_path, fault):
    with rig.connected() as service:
        strike(rig, service, cases["nmbatch"], fault, tmp_path / "out").check(fault)


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """A rig with Dask's own timeouts: all others have shorter ones."""
    with patient_rig(tmp_path_factory.mktemp("patient")) as rig:
        yield rig


@pytest.mark.slow
def test_nothing_waits_for_dasks_own_timeouts(patient, cases, tmp_path):
    # Large enough to be sent to the workers on its own.
    case = dataclasses.replace(cases["lloyd"], name="large", n_clusters=500)
    received = patient.visits("receive")
    for fault in (KillWorker(), KillNanny(), TermWorker()):
        with patient.connected() as service:
            outcome = strike(patient, service, case, fault, tmp_path / type(fault).__name__)
        outcome.check(fault)
        assert outcome.recovery < STALL_SECONDS
    assert patient.visits("receive") > received, "there was a broadcast"


@pytest.mark.slow
def test_a_death_inside_a_broadcast_keeps_nobody_waiting(patient, tmp_path):
    """Here of the first one to have it and of others; ``python -m tests.faults`` kills 50."""
    assert len(killed_in_broadcasts(patient, tmp_path / "rows", 4, most=STALL_SECONDS)) == 4


@pytest.mark.slow
def test_a_cluster_that_adapts_grows_under_jobs_and_shrinks_after_them(cases, tmp_path):
    assert "up to 3 workers" in adaptive(tmp_path / "adaptive", {"lloyd": cases["lloyd"]})


@pytest.mark.slow
def test_every_point_is_there(rig, cases, tmp_path):
    fault = KillWorker()
    large = dataclasses.replace(cases["lloyd"], name="large", n_clusters=500)
    with rig.connected() as service:
        strike(rig, service, large, fault, tmp_path / "out").check(fault)
    assert visited(rig.folder) >= {
        (when, p) for when in ("before", "after") for p in fault_injection.POINTS
    }
