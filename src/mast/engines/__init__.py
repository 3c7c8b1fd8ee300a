"""Engines that carry the messages of `mast.distributed` between processes: torchrun and Flower.

Users import them as `mast.cluster` and `mast.federated`.
"""
