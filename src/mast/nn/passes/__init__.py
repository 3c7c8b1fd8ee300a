"""How y = v + S(x - v) comes into passes: made in `values`, put into `calls` or, by sk.sample, `explicit`."""
