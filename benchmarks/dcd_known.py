"""Lowest objectives seen on four public sets, as sums of squares.

Nothing says that they are optima. Those for 2, 3, 5, 10, 15, 20 and 25 clusters come from hundreds
of starts, swaps of centres, single-row moves and recombination, the others from one short search
each.
"""

from __future__ import annotations

SETS = ("d15112", "eeg", "shuttle", "pla85900")
"""Public sets in the order of the tables."""
TABLED = (2, 3, 5, 10, 15, 20, 25)
"""Numbers of clusters in the tables of the paper on DCD-Bundle (Karmitsa, Bagirov, Taheri)."""
COUNTS = tuple(range(2, 26))
"""Numbers of clusters up to the largest of them."""

_UNITS = {"d15112": 1e11, "eeg": 1e8, "shuttle": 1e8, "pla85900": 1e15}
_SEEN = """
2    3.68403052     7845.09934     21.3432912     3.74908407
3    2.53239985     1833.88058     10.8541525     2.28057237
4    1.73603152     2.23605499     8.86909725     1.59307737
5    1.32706551     1.338576       7.24479099     1.3396834
6    1.11552736     0.842584349    5.63336889     1.13662699
7    0.932079069    0.677143872    4.33839875     0.97110085
8    0.816951455    0.571311362    3.70712735     0.837740772
9    0.713069566    0.493970876    3.26798061     0.746602414
10   0.644900582    0.453057412    2.83166258     0.68294149
11   0.590882016    0.422969878    2.40593888     0.62751361
12   0.544995223    0.39676564     2.14136367     0.575043782
13   0.50121512     0.378675933    1.92579099     0.531758836
14   0.465454605    0.36106098     1.71056729     0.493128782
15   0.431360035    0.346521412    1.53153807     0.460293737
16   0.400830045    0.332409279    1.37256241     0.433497713
17   0.379354435    0.319432879    1.23694765     0.409968933
18   0.358074201    0.307731915    1.15030312     0.388137331
19   0.339383255    0.298040998    1.0828961      0.368424589
20   0.321771213    0.289849122    1.02117843     0.349810482
21   0.305779627    0.282268804    0.961435113    0.332657299
22   0.289939532    0.276195578    0.903392308    0.319105461
23   0.276130408    0.270540641    0.846899295    0.306022843
24   0.264386416    0.265023817    0.799389004    0.293763913
25   0.252999952    0.259481819    0.758896624    0.282215664
100  0.0602064637   0.140396320    0.105466394    0.0721772559
"""
"""Clusters, and the lowest objective seen on each of the sets, in its unit."""


def _lowest() -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {name: {} for name in SETS}
    for line in _SEEN.split("\n")[1:-1]:
        k, *values = line.split()
        for name, value in zip(SETS, values, strict=True):
            found[name][int(k)] = float(f"{float(value) * _UNITS[name]:.9g}")
    return found


LOWEST = _lowest()
"""Lowest objectives seen, by set and number of clusters."""
