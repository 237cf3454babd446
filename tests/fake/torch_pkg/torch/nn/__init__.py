# SPDX-License-Identifier: MulanPSL-2.0
"""torch.nn of the stand-in."""

from torch.nn import parameter
