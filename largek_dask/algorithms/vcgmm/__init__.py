"""vc-GMM as developed here: mixtures of very many Gaussians, by truncated variational EM."""

from __future__ import annotations

from largek_dask.algorithms.vcgmm.algorithm import VCGMM

__all__ = ["VCGMM"]
