"""Every family gives the digests that it gave, in few fits; other files of this folder: in all."""

from __future__ import annotations

import pytest

from tests.digests.cases import FAMILIES, few_of
from tests.digests.conftest import check
from tests.digests.fits import fit

# Without a cache of kernels, the first fit of a family compiles for minutes on a busy machine.
pytestmark = pytest.mark.timeout(1500)


@pytest.mark.parametrize("family", FAMILIES)
def test_digests_of_few(family, shelf):
    check({case: fit(case, shelf) for case in few_of(family)}, whole=False)
