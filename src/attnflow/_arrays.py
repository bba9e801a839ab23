"""The functions for somebody's arrays: NumPy's, JAX's or PyTorch's."""

from typing import Any

import numpy as np


def array_namespace(*arrays: Any) -> Any:
    """NumPy itself for its own arrays (the layer around it takes a tenth of a second to import),
    else what the Array API has for these."""
    if all(isinstance(array, np.ndarray | np.generic | float | int) for array in arrays):
        return np
    from array_api_compat import array_namespace

    return array_namespace(*arrays)
