# SPDX-License-Identifier: MulanPSL-2.0
"""torch.utils.data of the stand-in."""

from torch.utils.data.dataloader import DataLoader
