"""What every backend does alike, one case per rule (harness-v2 §13 "Contract rules", §17, decisions sections 3 to 5).

No case looks behind the public surface.
"""

from . import case_faults, case_forks, case_lifecycle, case_queries, case_values, case_writing
from .kit import Case

CASES: tuple[Case, ...] = (
    *case_lifecycle.CASES,
    *case_writing.CASES,
    *case_values.CASES,
    *case_queries.CASES,
    *case_forks.CASES,
    *case_faults.CASES,
)
"""All cases."""
