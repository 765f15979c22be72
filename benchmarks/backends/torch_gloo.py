"""torch.distributed with gloo, on CPUs. It reduces in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from benchmarks.backends import Backend, Function, Shape


class TorchGloo(Backend):
    dtypes = ("float32", "float16", "bfloat16")

    def __init__(self) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def versions(self) -> dict[str, str]:
        return super().versions() | {"torch": torch.__version__}

    def barrier(self) -> None:
        dist.barrier()

    def close(self) -> None:
        dist.destroy_process_group()

    def allreduce(self, nbytes: int, dtype: str, repeat: int) -> dict[str, Function]:
        kind = getattr(torch, dtype)
        # Zeros, which stay what they are: there is no average in gloo.
        x = torch.zeros(max(1, nbytes // kind.itemsize), dtype=kind)

        def run() -> None:
            for _ in range(repeat):
                dist.all_reduce(x)

        return {"host": run}

    def gradient_set(self, shapes: Sequence[Shape]) -> dict[str, Function]:
        tensors = [torch.zeros(shape) for shape in shapes]

        def run() -> None:
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

        return {"at once": run}


def connect() -> TorchGloo:
    return TorchGloo()
