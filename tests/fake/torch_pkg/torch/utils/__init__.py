# SPDX-License-Identifier: MulanPSL-2.0
"""torch.utils of the stand-in."""

from torch.utils import data
