"""Which scheduler has a store of jobs: one claims it, keeps it, may lose it; others are refused."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable

from largek_dask import config
from largek_dask.errors import ClusterError, OtherSchedulerError, ParameterError
from largek_dask.service.lease import STORE, Contender, Keeper
from largek_dask.service.store import Records

__all__ = ["Tenure"]

logger = logging.getLogger(__name__)


def check_patience() -> None:
    """Refuse settings by which schedulers would take from each other what the other one has."""
    beat = float(config.get("service.beat-seconds"))
    patience = float(config.get("service.patience-seconds"))
    # Twice: a sign of life that comes a little late is no death.
    if not patience >= 2.0 * beat:
        raise ParameterError(
            f"largek.service.patience-seconds ({patience:g}) has to be at least twice "
            f"largek.service.beat-seconds ({beat:g}), on all schedulers of a store: or one that "
            "lives would seem dead, and lose its jobs to another."
        )


class Tenure:
    """The right of one scheduler to a store, while it has it and while another one does.

    Parameters
    ----------
    records : Records
        Those in the store.
    owner : str
        Who claims the store: told to whoever comes second, so it says where this one is.
    changed : Condition
        Everything here changes under it.

    Attributes
    ----------
    records : Records
        Under the last claim, once there is one: after its loss nothing is written by them.
    holder : str
        The scheduler that has the store, if it is known and not this one.
    epoch : str
        Another one each time that the store is taken.

    Raises
    ------
    ParameterError
        Whoever has a claim would show itself less often than others have patience.
    """

    def __init__(self, records: Records, owner: str, changed: threading.Condition) -> None:
        check_patience()
        self.records = records
        self.holder = ""
        self.epoch = ""
        self._owner = owner
        self._changed = changed
        self._contender: Contender | None = None
        self._keeper: Keeper | None = None
        """Shows that the lease is held; None while this scheduler does not have the store."""
        self._is_over = False

    @property
    def is_held(self) -> bool:
        """Whether this scheduler has the store, as far as it knows."""
        return self._keeper is not None

    def claim(self, lost: Callable[[], None]) -> None:
        """Take the store, unless another scheduler has it.

        Parameters
        ----------
        lost : callable
            Called under the condition when another scheduler has taken it.
        """
        if self._contender is None:
            patience = float(config.get("service.patience-seconds"))
            self._contender = Contender(self.records.folder, STORE, self._owner, patience)
        lease = self._contender.claim()
        if lease is None:
            self._is_held_by(self._contender.living)
            return
        records = self.records.under(lease)
        keeper = Keeper(lease, lambda: self._lose(lost))
        with self._changed:
            if self._is_over:
                lease.release()
                return
            self._contender, self.holder, self.epoch = None, "", uuid.uuid4().hex
            self.records, self._keeper = records, keeper
            keeper.start()

    def _is_held_by(self, owner: str) -> None:
        with self._changed:
            if owner and not self.holder:
                logger.warning("The jobs in %s are those of %s", self.records.url, owner)
            self.holder = owner
            self._changed.notify_all()

    def _lose(self, lost: Callable[[], None]) -> None:
        with self._changed:
            self._keeper = None
            lost()
            self._changed.notify_all()

    def refusal(self) -> ClusterError:
        """Why nothing can be asked of this scheduler, and who can be asked instead."""
        if not self.holder:
            return ClusterError(
                f"the jobs in {self.records.url} cannot be read at the moment: try later."
            )
        patience = float(config.get("service.patience-seconds"))
        return OtherSchedulerError(
            f"the jobs in {self.records.url} are those of {self.holder}: connect to that "
            f"scheduler. (This one takes over when the other has been silent for {patience:g} s.)"
        )

    def claim_no_more(self) -> None:
        """Claim nothing from now on; what is held is kept until :meth:`give_back`."""
        with self._changed:
            self._is_over = True

    def give_back(self) -> None:
        """Let another scheduler have the store at once."""
        if (keeper := self._keeper) is not None:
            keeper.stop()
