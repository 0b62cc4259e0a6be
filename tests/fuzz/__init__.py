"""Random fits with all features, each checked by brute force.

``python -m tests.fuzz --minutes 2 --seed 7`` runs random cases for this time, and prints every case
that fails as a test to copy; ``--one SEED`` runs a single case.
"""

from tests.fuzz.cases import Case
from tests.fuzz.trial import faults_of

__all__ = ["Case", "faults_of"]
