"""numpy, imported without its documentation and what only types need; and the kinds of arrays that we have.

Who imports this before numpy spares a fifth of the time that numpy takes.
"""

import os
from typing import TYPE_CHECKING, Any, Final

from gpushare.putting_off import putting_off

# A second thread for products of large matrices, which we have none of, takes longer to start than all of numpy to import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
_UNUSED: Final = {
    "numpy._core._add_newdocs": (),
    "numpy._core._add_newdocs_scalars": (),
    "numpy._typing": ("NDArray",),
}
with putting_off(_UNUSED):
    import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.floating[Any]]
    Ints = npt.NDArray[np.signedinteger[Any]]
    Places = npt.NDArray[np.intp]
    Mask = npt.NDArray[np.bool_]
else:
    Floats = Ints = Places = Mask = np.ndarray
