"""Clients of different capacity train one model, each the submodel that it can hold."""
