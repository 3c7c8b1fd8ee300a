"""Flower, in simulation and between machines: the engine behind `mast.federated`."""
