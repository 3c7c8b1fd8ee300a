"""torch.distributed under torchrun, one process per rank: the engine behind `mast.cluster`."""
