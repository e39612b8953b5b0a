"""(history, observations) -> findings, each naming a requirement."""

from kvproof.checks.judge import judge

__all__ = ["judge"]
