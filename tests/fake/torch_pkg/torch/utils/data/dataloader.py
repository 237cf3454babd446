# SPDX-License-Identifier: MulanPSL-2.0
"""torch.utils.data.dataloader of the stand-in"""


class _BaseDataLoaderIter:
    def __init__(self, loader):
        self._at, self._loader = 0, loader

    def __iter__(self):
        return self

    def __next__(self):
        if self._at >= len(self._loader.dataset):
            raise StopIteration
        item = self._next_data()
        self._at += 1
        return item

    def _next_data(self):
        return self._loader.dataset[self._at]


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    pass


class DataLoader:
    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return _SingleProcessDataLoaderIter(self)

    def __len__(self):
        return len(self.dataset)
