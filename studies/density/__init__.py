"""Accuracy against density: one network cut to 100 % ... 5 %, trained with MAST and in other ways."""
