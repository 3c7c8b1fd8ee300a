"""How sparsified weights come into forward and backward passes.

=================  ==================================================================================
`values`           y = v + S(x - v) of the current draw, made once, with S'g as its gradient
`calls`            modules find y in the place of their weights while they are called
`explicit`         inside ``sk.sample(step)`` the parameters themselves hold y
=================  ==================================================================================
"""
