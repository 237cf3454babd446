# SPDX-License-Identifier: MulanPSL-2.0
"""A stand-in for PyTorch in a few lines of plain Python: the modules, classes and functions that the built-in function
list names, doing nothing but calling each other as the real ones do. Lets every interpreter at hand run a training job.
"""

import pickle

from torch import _C, autograd, distributed, nn, optim, utils
from torch._tensor import Tensor, bfloat16, float32, int64

__version__ = "0.0.fake"


def save(obj, path):
    with open(path, "wb") as f:
        pickle.dump(obj, f)


def load(path):
    with open(path, "rb") as f:
        return pickle.load(f)
