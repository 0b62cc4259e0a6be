"""Random fits of everything there is, each checked by brute force.

``python -m tests.fuzz --minutes 2 --seed 7`` runs as many cases as fit into the time and prints
every one that fails as a test to paste; ``--one SEED`` runs a single one.
"""

from tests.fuzz.cases import Case
from tests.fuzz.trial import faults_of

__all__ = ["Case", "faults_of"]
