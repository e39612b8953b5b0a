"""What is said of those left out as too slow; without pandas, as processes that measure import it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvproof.records import Sample

MORE = "--patience"
"""The option that gives slow implementations more time; the notes of those left out say how much."""


def more_time(samples: Sequence[Sample]) -> str:
    """What measures those that were left out as too slow; "" where there are none."""
    asked = [int(n) for s in samples for n in re.findall(rf"left out: .*{MORE} (\d+)", s.note)]
    return f"left out: too slow for the time of a cell; {MORE} {max(asked)} measures all" if asked else ""
