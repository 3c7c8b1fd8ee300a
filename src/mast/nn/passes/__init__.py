"""How y = v + S(x - v) comes into forward passes: in `calls`, as `slices`, or `explicit`, by sk.sample."""
