"""Teachers compared on toy students."""

from curriculum.trial import run_one, simulate

__all__ = ["run_one", "simulate"]
