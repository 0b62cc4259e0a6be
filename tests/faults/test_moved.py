"""Schedulers that come back elsewhere, in processes of their own: clients and workers find them."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Thread

import pytest

import largek_dask as lk
from tests.faults.cases import make_cases
from tests.faults.catalogue import KillScheduler
from tests.faults.moments import Moment
from tests.faults.moved import FATES, drill
from tests.faults.rig import Rig
from tests.faults.strikes import events_of, redone


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return make_cases(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with Rig(tmp_path_factory.mktemp("rig"), moves=True) as rig:
        yield rig


def address_in(file):
    return json.loads(Path(file).read_text())["address"]


def test_a_client_follows_a_scheduler_that_was_killed_to_another_port(rig, cases, tmp_path):
    case, found = cases["lloyd"], {}
    with rig.connected() as service:
        first, client = address_in(rig.address), service.client
        meeting = rig.meet(Moment("before", "step", nth=6))
        job = service.submit(**case.options(), output=str(tmp_path / "out"))
        watching = Thread(target=lambda: found.update(model=job.result()))
        watching.start()
        try:
            KillScheduler().inject(rig, meeting.wait())
        finally:
            meeting.release()
            watching.join(120.0)
        assert found["model"].digest() == case.digest
        assert address_in(rig.address) != first
        assert service.client is not client
        assert redone(events_of(tmp_path / "out")) > 0, "it was struck in the middle"
        # Whoever comes now finds it as well.
        with lk.connect(rig.address) as other:
            assert other.job(job.id).model().digest() == case.digest


def test_schedulers_that_die_are_followed_by_others_and_nothing_is_lost(tmp_path):
    """One of each kind; ``python -m tests.faults.moved`` has 30."""
    lean = {"n_workers": 1, "nannies": False, "dashboard": ("--no-dashboard",)}
    deaths = list(drill(tmp_path, len(FATES), **lean))
    assert [death.kind for death in deaths] == list(FATES)
