"""What an implementation offers to be judged.

Six members make a manager: add, append, commit, free, table, free_blocks. Everything else is a
named capability: what is not named is UNSUPPORTED and never failed. This package holds the whole
contract in Python; `specs/capabilities.toml` says what each capability obliges.

An adapter imports the errors from here and may ignore the rest: nothing has to be inherited.
"""

from kvproof.contract.errors import (
    BadInput,
    BadSlots,
    ContractError,
    OutOfBlocks,
    Refused,
    UnknownSequence,
    require_new,
    require_tokens,
)
from kvproof.contract.kernel import Kernel, KernelFault, KernelOptions, Limits, wrong_limits
from kvproof.contract.manager import Block, Keys, Manager, ManagerOptions, Policy, wrong_policy
from kvproof.contract.ranks import (
    Diverged,
    Network,
    RankGone,
    RankGroup,
    RankGroupOptions,
    RankLost,
    RankProcess,
)
from kvproof.contract.scheduler import Scheduler, SchedulerOptions

__all__ = [
    "BadInput",
    "BadSlots",
    "Block",
    "ContractError",
    "Diverged",
    "Kernel",
    "KernelFault",
    "KernelOptions",
    "Keys",
    "Limits",
    "Manager",
    "ManagerOptions",
    "Network",
    "OutOfBlocks",
    "Policy",
    "RankGone",
    "RankGroup",
    "RankGroupOptions",
    "RankLost",
    "RankProcess",
    "Refused",
    "Scheduler",
    "SchedulerOptions",
    "UnknownSequence",
    "require_new",
    "require_tokens",
    "wrong_limits",
    "wrong_policy",
]
