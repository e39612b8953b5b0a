"""`kvproof claims`: each figure of the chapter beside what is counted or measured here.

Numbers of blocks and tokens are asked of the reference implementation through the contract; the chapter's
own code is followed by its rules, restated in a line each. Times are measured where there is what they need.
"""

from kvproof.claims.claim import Claim, Verdict, check

__all__ = ["Claim", "Verdict", "check"]
