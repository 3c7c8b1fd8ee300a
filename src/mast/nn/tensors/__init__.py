"""What a draw does to the tensors of a model, and nothing above that.

=================  ==================================================================================
`selection`        which parameters are sketched
`weights`          where the model looks them up, and their shift
`drawing`          how a key becomes what is kept of each
`scaling`          S and S' on tensors
`torch_private`    what is used of PyTorch that PyTorch does not promise
=================  ==================================================================================
"""
