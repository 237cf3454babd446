# SPDX-License-Identifier: MulanPSL-2.0
"""torch.nn.parameter of the stand-in."""

from torch._tensor import Tensor


class Parameter(Tensor):
    pass
