"""The dependency graph of a model: which slices of which tensors belong to one unit, found by running it.

==============  ==================================================================================
`search`        `find_units`, where it begins
`examples`      what a model is run on, and whether a small model agrees with the whole one
`recording`     forward passes and their operations
`graph`         slices that depend on each other, and labels that say which slices a value is made of
`tracing`       carries labels through a forward pass, by the rules of `layer_rules`, `tensor_rules`
`grouping`      groups of units out of the graph
`residual`      residual branches
==============  ==================================================================================
"""
