"""Names for the array types that the modules pass to each other."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Int32: TypeAlias = NDArray[np.int32]
Int64: TypeAlias = NDArray[np.int64]
UInt64: TypeAlias = NDArray[np.uint64]
Bool: TypeAlias = NDArray[np.bool_]
Index: TypeAlias = NDArray[Any]
"""An array of any integer type that serves as an index."""
