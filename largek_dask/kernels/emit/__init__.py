"""LLVM IR of the micro-kernels, and plain numpy equivalents for runs without a compiler."""

from largek_dask.kernels.emit.boxes import *
from largek_dask.kernels.emit.dense import *
from largek_dask.kernels.emit.ranks import *
from largek_dask.kernels.emit.row_sums import *
from largek_dask.kernels.emit.rows import *
from largek_dask.kernels.emit.sparse import *
