"""The kernels of kvproof_kernels behind the contract: what their adapters share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from kvproof.contract import BadInput, Limits

ALL = frozenset({"write", "copy_blocks", "prefill", "features", "lse", "empty"})
SERVED = Limits(
    dtypes=("fp32", "fp16", "bf16", "fp8_e4m3"),
    head_sizes=(64, 80, 96, 128, 192, 256),
    block_sizes=range(1, 257),
    features=("softcap", "alibi", "window", "k_scale", "v_scale"),
    devices=("cpu",),
)


def require_head_size(served: Limits, tensor: Any) -> None:
    """Raise BadInput where the last dimension is no head size of `served`."""
    size = int(tensor.shape[-1])
    if size not in served["head_sizes"]:
        raise BadInput(f"head size is {size}; allowed: {', '.join(map(str, served['head_sizes']))}")


class NativeKernel:
    """A kernel whose functions take the contract's arguments and the layout.

    functions: has decode, prefill, write and copy_blocks. What they refuse is a ValueError that names the
    limit; here it is BadInput.
    """

    def __init__(
        self,
        functions: Any,
        layout: Literal["NHD", "HND"] = "NHD",
        limits: Limits = SERVED,
        capabilities: frozenset[str] = ALL,
    ) -> None:
        self.functions = functions
        self.layout: Literal["NHD", "HND"] = layout
        self.limits = limits
        self.capabilities = capabilities

    def decode(self, q: Any, *tensors: Any, **features: Any) -> tuple[Any, Any]:
        require_head_size(self.limits, q)
        return self.called(self.functions.decode, q, *tensors, layout=self.layout, **features)  # type: ignore[no-any-return]

    def prefill(self, q: Any, *tensors: Any, **features: Any) -> tuple[Any, Any]:
        require_head_size(self.limits, q)
        return self.called(self.functions.prefill, q, *tensors, layout=self.layout, **features)  # type: ignore[no-any-return]

    def write(self, *tensors: Any) -> None:
        self.called(self.functions.write, *tensors, layout=self.layout)

    def copy_blocks(self, caches: Sequence[Any], pairs: Sequence[tuple[int, int]]) -> None:
        self.called(self.functions.copy_blocks, caches, pairs)

    def called(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """The function's answer.

        Raises:
            BadInput: it refuses the call.
        """
        try:
            return function(*arguments, **named)
        except ValueError as error:
            raise BadInput(str(error)) from None
