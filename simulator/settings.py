"""Settings: dataclasses checked by pydantic, each field declared once with its type, range and meaning.

@dataclass(config=SETTINGS)
class BudgetConfig:
steps: int = Field(0, ge=0)
\"\"\"Optimiser steps; 0 sets no limit.\"\"\"
"""

from __future__ import annotations

from pydantic import ConfigDict

SETTINGS = ConfigDict(extra="forbid", allow_inf_nan=False)
"""Unknown names, NaN and infinite numbers are refused."""
