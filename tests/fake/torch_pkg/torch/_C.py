# SPDX-License-Identifier: MulanPSL-2.0
"""torch._C of the stand-in: what the agent asks before it reads a tensor."""

function_mode = False


def _has_torch_function_unary(obj):
    return function_mode or hasattr(type(obj), "__torch_function__")
