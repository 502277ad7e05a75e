"""Makes torchvision's CUDA build importable with a torch for CPUs; `torchvision_ops.pth` loads this file.

torchvision registers Python kernels for operators that its C++ library declares. That library does not load
with another build of torch, so the import fails on a missing operator. This file declares the operators
first."""

import importlib.abc
import sys

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Finds no module; declares the operators when torchvision is first imported."""

    def find_spec(self, fullname, path, target=None):  # type: ignore[no-untyped-def]
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
            for operator in OPERATORS:
                self.library.define(operator)  # type: ignore[no-untyped-call]
        return None


_finder = _BeforeTorchvision()
sys.meta_path.insert(0, _finder)
