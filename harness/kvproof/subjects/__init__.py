"""Finding, opening and driving implementations."""

from kvproof.subjects.find import Implementation, SubjectError, find, installed

__all__ = ["Implementation", "SubjectError", "find", "installed"]
