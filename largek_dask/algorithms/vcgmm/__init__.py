"""vc-GMM as extended in this package: mixtures of many Gaussians, by truncated variational EM."""

from __future__ import annotations

from largek_dask.algorithms.vcgmm.algorithm import VCGMM

__all__ = ["VCGMM"]
