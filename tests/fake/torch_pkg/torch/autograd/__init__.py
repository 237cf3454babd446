# SPDX-License-Identifier: MulanPSL-2.0
"""torch.autograd of the stand-in."""


def backward(tensors):
    return sum(i * i for i in range(50))


def grad(outputs, inputs):
    return backward(outputs)
