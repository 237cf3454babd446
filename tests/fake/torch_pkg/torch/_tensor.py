# SPDX-License-Identifier: MulanPSL-2.0
"""torch.Tensor of the stand-in: a type, a number of elements."""


class dtype:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return "torch." + self.name


float32, bfloat16, int64 = dtype("float32"), dtype("bfloat16"), dtype("int64")


class Tensor:
    def __init__(self, count, kind=float32):
        self.count, self.dtype = count, kind

    def numel(self):
        return self.count
