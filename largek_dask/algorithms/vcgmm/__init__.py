"""vc-GMM: mixtures of very many Gaussians, by truncated variational EM, on rows or a coreset."""

from __future__ import annotations

from largek_dask.algorithms.vcgmm.algorithm import VCGMM

__all__ = ["VCGMM"]
