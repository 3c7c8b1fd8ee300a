"""Data: LIBSVM files by name or by path, as sparse matrices with labels -1/+1.

>>> import mast
>>> A, b = mast.data.load("a1a")
>>> A.shape, sorted(set(b))
((1605, 123), [np.float64(-1.0), np.float64(1.0)])
"""

from mast.data.catalogue import SETS, DataSet
from mast.data.libsvm import save
from mast.data.loading import Loaded, available, fetch, load
from mast.data.lookup import cache, find

__all__ = ["SETS", "DataSet", "Loaded", "available", "cache", "fetch", "find", "load", "save"]
